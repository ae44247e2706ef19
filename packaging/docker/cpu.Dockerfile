# Image for CPUs and OpenCL (PoCL): docker build -f packaging/docker/cpu.Dockerfile -t hyrt .
# To omit the CUDA libraries, pass the index of torch's CPU wheels: --build-arg PIP_EXTRA_INDEX_URL=URL
FROM python:3.11-slim-bookworm

ARG PIP_EXTRA_INDEX_URL=

RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev pocl-opencl-icd \
    && rm -rf /var/lib/apt/lists/*

COPY . /src
RUN pip install --no-cache-dir -c /src/constraints.txt \
        "/src[opencl,order,partition,plot]" \
    && rm -rf /src \
    && useradd --uid 1000 --create-home trainer

USER 1000
WORKDIR /home/trainer
ENTRYPOINT ["hyrt"]
CMD ["--help"]
