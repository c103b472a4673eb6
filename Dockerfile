# syntax=docker/dockerfile:1
# hive in one image. With EMBEDDED=0 the embedded Postgres, Valkey and model are left out; then set
# HIVE_POSTGRES__DSN, HIVE_REDIS__URL and HIVE_EMBEDDING__URL.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG EMBEDDED=1
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY requirements.lock ./
# Everything pinned is downloaded against its hash; what the image needs is then chosen from that alone.
RUN pip download --quiet --no-deps --require-hashes -r requirements.lock -d /wheels
COPY pyproject.toml README.md config.toml ./
COPY hive hive
COPY pools pools
COPY supervisor supervisor
COPY probes probes
RUN python -m venv /opt/hive \
 && /opt/hive/bin/pip install --quiet --no-index --find-links /wheels hatchling \
 && if [ "$EMBEDDED" = 1 ]; then extra='[embedded]'; else extra=''; fi \
 && /opt/hive/bin/pip install --quiet --no-index --find-links /wheels --no-build-isolation ".$extra" \
 && /opt/hive/bin/pip uninstall --quiet --yes hatchling \
 # A package of the same name exists elsewhere: the one inside must be hive's own, and alone.
 && cd / && /opt/hive/bin/python -c "import supervisor.main, importlib.metadata as m; assert m.packages_distributions()['supervisor'] == ['hive-supervisor']"

FROM python:${PYTHON}-slim-bookworm
RUN useradd --system --uid 8420 --home-dir /var/lib/hive hive \
 && install -d -o hive -g hive -m 0700 /var/lib/hive
COPY --from=build /opt/hive /opt/hive
COPY config.toml /etc/hive/config.toml
ENV PATH=/opt/hive/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HIVE_CONFIG=/etc/hive/config.toml \
    HIVE_STATE_DIR=/var/lib/hive \
    HIVE_HTTP__HOST=0.0.0.0
USER hive
WORKDIR /var/lib/hive
VOLUME /var/lib/hive
EXPOSE 8420
STOPSIGNAL SIGTERM
# hive is process 1: it reaps orphans itself. Give it its grace time: docker stop --time 35.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["hive", "probe", "live"]
ENTRYPOINT ["hive"]
CMD ["run"]
