# NVIDIA GPUs: docker build -f packaging/docker/cuda.Dockerfile -t hyrt:cuda .
# docker run --gpus all hyrt:cuda devices
# torch's wheels bring CUDA's libraries and NVRTC; the driver comes from the host.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

COPY . /src
RUN pip install --no-cache-dir "/src[cuda,order,partition,plot]" \
    && rm -rf /src \
    && useradd --uid 1000 --create-home trainer

USER 1000
WORKDIR /home/trainer
ENTRYPOINT ["hyrt"]
CMD ["--help"]
