#!/bin/sh
# Fills /opt/venv of an image, what it needs and the project itself apart, since the latter is small and changes often:
#
#   install.sh requirements EXTRA...   what these extras of the project need; reads pyproject.toml and constraints.txt
#                                      of the current folder, and overrides.txt if it is there
#   install.sh project                 the project in the current folder itself, below /project for the image to copy
#
# uv and its cache lie in the cache mount /cache, which no layer holds.
set -eu
UV_VERSION=0.13.9

export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1
export UV_CACHE_DIR=/cache/uv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 UV_NO_PROGRESS=1
uv=/cache/uv-$UV_VERSION/bin/uv
if [ ! -x "$uv" ]; then
    python3 -m venv "${uv%/bin/uv}"
    "${uv%/uv}/pip" install --no-cache-dir "uv==$UV_VERSION"
fi

step=$1
shift
"$uv" venv --quiet --python python3 /opt/venv
case $step in
    requirements)
        for extra; do
            shift
            set -- "$@" --extra "$extra"
        done
        if [ -e overrides.txt ]; then set -- "$@" --override overrides.txt; fi
        "$uv" pip install --python /opt/venv/bin/python --constraint constraints.txt "$@" --requirement pyproject.toml
        find /opt/venv -name '*.a' -delete # some wheels bring libraries to link with
        ;;
    project)
        "$uv" pip install --python /opt/venv/bin/python --prefix /project --no-deps .
        ;;
esac
