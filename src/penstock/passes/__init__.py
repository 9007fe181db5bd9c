"""Program to graph, in pure steps."""
