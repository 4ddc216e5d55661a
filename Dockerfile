# A broker in a container. `make wheel` first: the image installs dist/*.whl. docs/operations/container.md has the rest.
FROM python:3.12-slim

RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/tidewire tidewire
COPY dist/tidewire-*.whl /tmp/
RUN pip install --no-cache-dir /tmp/tidewire-*.whl && rm /tmp/tidewire-*.whl

USER 10001
WORKDIR /var/lib/tidewire
# Made by its user, so that a new volume belongs to that user too.
RUN mkdir data
VOLUME /var/lib/tidewire/data
EXPOSE 6650 9092 8080

# It fails if the broker does not answer, and if its disk is full.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/admin/v2/brokers/health', timeout=4)"]

# A container's addresses are not loopback, and the broker does not authenticate clients.
ENTRYPOINT ["tidewire", "broker", "--data-dir", "data", "--pulsar", "0.0.0.0:6650", "--kafka", "0.0.0.0:9092", "--http", "0.0.0.0:8080", "--allow-unauthenticated"]
