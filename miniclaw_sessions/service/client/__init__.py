"""The client: the words of `SessionManager` and `Session`, wherever the workspace is held.

`connect` finds the daemon that holds a workspace, or opens it in this process; `Client` and `ClientSession` are the
same in both cases. Importing this loads no HTTP library; a daemon that is found does.
"""

from miniclaw_sessions.service.client.client import Client as Client
from miniclaw_sessions.service.client.connecting import connect as connect
from miniclaw_sessions.service.client.session import ClientSession as ClientSession
