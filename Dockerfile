# The fleet's state server as an image. Nothing comes from outside the lock: every package is named by version and hash.
FROM python:3.13-slim-bookworm AS build
WORKDIR /build
COPY requirements/pip.txt requirements/server.txt requirements/
RUN ["python", "-m", "venv", "/opt/agent-coord"]
RUN ["/opt/agent-coord/bin/python", "-m", "pip", "install", "--no-cache-dir", "--require-hashes", "-r", "requirements/pip.txt"]
RUN ["/opt/agent-coord/bin/python", "-m", "pip", "install", "--no-cache-dir", "--require-hashes", "-r", "requirements/server.txt"]
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY systemd systemd
COPY launchd launchd
RUN ["/opt/agent-coord/bin/python", "-m", "pip", "wheel", "--no-cache-dir", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."]
RUN ["/opt/agent-coord/bin/python", "-m", "pip", "install", "--no-cache-dir", "--no-deps", "--no-index", "--find-links", "dist", "agent-coord"]

FROM python:3.13-slim-bookworm
COPY --from=build /opt/agent-coord /opt/agent-coord
RUN ["useradd", "--system", "--uid", "10001", "--user-group", "--no-create-home", "--home-dir", "/var/lib/agent-coord", "agent-coord"]
RUN ["install", "-d", "-o", "agent-coord", "-g", "agent-coord", "-m", "0700", "/var/lib/agent-coord"]
ENV PATH=/opt/agent-coord/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    AGENT_COORD_SERVER_DB=sqlite:////var/lib/agent-coord/state.db
USER 10001:10001
WORKDIR /var/lib/agent-coord
VOLUME ["/var/lib/agent-coord"]
EXPOSE 8787
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8787/v1/health', timeout=3)"]
ENTRYPOINT ["agentcoordd"]
CMD ["server", "--listen", "0.0.0.0:8787"]
