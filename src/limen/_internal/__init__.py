"""Building blocks without domain knowledge: threads, sockets, deadlines. Not a public interface."""
