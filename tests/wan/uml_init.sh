#!/bin/sh
# The guest's init: FARFLUNG_OUT, FARFLUNG_PYTHON, FARFLUNG_GUEST and PYTHONPATH come from the kernel's command line.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mkdir /run/out /run/tmp  # and not below /tmp, where the clone under test may be
mount -t hostfs out /run/out -o "$FARFLUNG_OUT"
ip link set lo up
export HOME=/run/tmp TMPDIR=/run/tmp PYTHONDONTWRITEBYTECODE=1
$FARFLUNG_PYTHON $FARFLUNG_GUEST /run/out $(cat /run/out/modules) >/run/out/log 2>&1
sync
halt -f 2>/dev/null
echo o >/proc/sysrq-trigger
sleep 5
