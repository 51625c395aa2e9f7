"""Several hosts on this machine, with a network between them that can be slow, lossy or cut.

A host is a set of Linux namespaces (network, processes, mounts, name) around one small init
process, with an OpenSSH server of its own. The kernel's own TCP runs on both ends of each
connection; between the hosts is a switch in user space, as not every kernel has netem.
Nothing has a name outside of its own lab, so that several labs can live at once, and all of it is
gone when the process that made it ends, however it ends.
"""

from tests.support.netlab.driven import Driven
from tests.support.netlab.host import Host
from tests.support.netlab.lab import Lab, child_of, missing, running_lab
from tests.support.netlab.link import Link

__all__ = ["Driven", "Host", "Lab", "Link", "child_of", "missing", "running_lab"]
