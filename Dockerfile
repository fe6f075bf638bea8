# docker build -t mosaic-dump .
# docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/kernels" mosaic-dump script.py
FROM python:3.13-slim
COPY . /opt/mosaic-toolkit
RUN pip install --quiet --no-cache-dir --root-user-action=ignore /opt/mosaic-toolkit
WORKDIR /kernels
ENTRYPOINT ["mosaic-dump"]
