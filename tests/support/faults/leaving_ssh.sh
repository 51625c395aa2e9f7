#!/bin/sh
# Stands in for ssh to a host whose .bashrc ends with `exit`.
exit 0
