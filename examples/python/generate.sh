#!/usr/bin/env bash
# Generates Python code for the contracts into ./gen. Needs Debian's python3-grpc-tools (or pip's grpcio-tools).
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-/usr/bin/python3}
rm -rf gen && mkdir -p gen
find ../../proto -name '*.proto' -printf '%P\n' | sort |
	xargs "$python" -m grpc_tools.protoc -I ../../proto --python_out=gen --grpc_python_out=gen
