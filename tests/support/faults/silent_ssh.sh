#!/bin/sh
# Stands in for ssh to a host whose login never ends.
exec sleep 600
