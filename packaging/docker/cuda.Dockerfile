# Image for NVIDIA GPUs: docker build -f packaging/docker/cuda.Dockerfile -t hyrt:cuda .
# Run with: docker run --gpus all hyrt:cuda devices
# torch's wheels include the CUDA libraries and NVRTC; the host provides the driver.
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
