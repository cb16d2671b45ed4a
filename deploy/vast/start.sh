#!/usr/bin/env bash
# A node on a rented GPU (vast.ai: the "on-start script"; RunPod: the container's start command).
#
#   FARFLUNG_LINK     the link, as a secret of your account or of the template
#   FARFLUNG_PACKAGE  what pip installs where the image has no farflung: a wheel's address, or git+https://...
set -euo pipefail

: "${FARFLUNG_LINK:?set it to the link that the coordinator printed}"
port=7071

if ! command -v farflung >/dev/null; then
    : "${FARFLUNG_PACKAGE:?the image has no farflung: say what pip shall install}"
    python3 -m pip install --quiet "$FARFLUNG_PACKAGE"
fi

# Both say which port of the host leads to ours, if the template opens 7071/tcp. Without one, the node dials the others.
reachable=()
outside=${VAST_TCP_PORT_7071:-${RUNPOD_TCP_PORT_7071:-}}
host=${PUBLIC_IPADDR:-${RUNPOD_PUBLIC_IP:-}}
if [[ -n $outside && -n $host ]]; then
    reachable=(--advertise "$host:$outside")
fi

name=${CONTAINER_ID:+vast-$CONTAINER_ID}
name=${name:-${RUNPOD_POD_ID:+runpod-$RUNPOD_POD_ID}}
# A coordinator that does not answer is looked for for an hour: longer, and the rent is for nothing.
exec farflung join --patience "${FARFLUNG_PATIENCE:-1h}" --name "${name:-$(hostname)}" --listen "0.0.0.0:$port" "${reachable[@]}" --cache "${FARFLUNG_CACHE:-/workspace/farflung}"
