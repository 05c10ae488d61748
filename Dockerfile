# miniclaw-sessions as a container: docker build -t miniclaw-sessions . (docs/how-to/install.md)
FROM python:3.13-slim-trixie AS build
WORKDIR /src
COPY . .
# hadolint ignore=DL3042 -- the stage is thrown away, its cache with it
RUN python -m venv /opt/miniclaw-sessions \
    && /opt/miniclaw-sessions/bin/pip install --quiet '.[all]' --constraint .ci/constraints.txt

FROM python:3.13-slim-trixie
RUN useradd --create-home --uid 10001 miniclaw && install -d -o miniclaw -g miniclaw -m 0700 /data
COPY --from=build /opt/miniclaw-sessions /opt/miniclaw-sessions
ENV PATH=/opt/miniclaw-sessions/bin:$PATH MINICLAW_WORKSPACE=/data
USER 10001
VOLUME /data
# SIGTERM ends it in order; everything that was acknowledged is in the store already.
# Asks the daemon itself: a command would read the files of one that hangs, and find nothing wrong.
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", "import socket; daemon = socket.socket(socket.AF_UNIX); \
    daemon.connect('/data/miniclaw.sock'); daemon.sendall(b'GET /health/ready HTTP/1.0\\r\\n\\r\\n'); exit(b' 200 ' not in daemon.recv(64))"]
ENTRYPOINT ["miniclaw-sessions"]
CMD ["serve"]
