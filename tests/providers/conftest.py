"""The services are asked over plain HTTP: certificates, which every client would load anew, are loaded once."""

from __future__ import annotations

from functools import cache

import httpcore2

httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)
