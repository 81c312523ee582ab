"""Reports: plots, and pages to look at without a server."""
