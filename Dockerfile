# Never built: where this was written, no base image could be fetched.
# The demo: docker run --rm -v "$PWD/results:/bench/results" coupled-adam-bench
# With GPUs: docker run --gpus all --ipc=host ... coupled-adam-bench --cores all --configfile workflow/config/NAME.yaml
FROM python:3.12-slim-bookworm
# git names the commit in the record of a run; a compiler is for `execution.compile` on CPUs.
RUN apt-get update \
    && apt-get install -y --no-install-recommends git g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /bench
COPY . .
RUN pip install --no-cache-dir -c constraints.txt -e '.[pipeline]' -e packages/coupled-adam -e packages/embedding-geometry -e packages/coupled-adam-registry
ENTRYPOINT ["snakemake"]
CMD ["--cores", "all"]
