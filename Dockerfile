# docker build -t iofast .          the command line, for packing, checking and looking at data
# docker run --rm -v "$PWD:/data" iofast pack images out.lmdb --resize 256
#
# For training, install iofast in the image that has your torch:
#   COPY --from=iofast /wheels /wheels
#   RUN pip install /wheels/iofast-*.whl

FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libjpeg62-turbo-dev
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends libjpeg62-turbo && rm -rf /var/lib/apt/lists/*
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/iofast-*.whl)[parquet,remote]"
WORKDIR /data
ENTRYPOINT ["iofast"]
CMD ["--help"]
