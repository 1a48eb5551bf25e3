"""The processes of a service: supervisor, listeners, signals, and the routes of both planes.

This package composes all others of `limen.server`; none of them imports it.
"""
