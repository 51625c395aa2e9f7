#!/bin/sh
# Stands in for ssh to a host whose login scripts print LOGIN_NOISE lines.
i=0
while [ "$i" -lt "${LOGIN_NOISE:-3}" ]; do
    echo "Welcome to the machine! Last login: never. There are no messages. Line $i of the day."
    i=$((i + 1))
done
for last; do :; done
exec sh -c "$last"
