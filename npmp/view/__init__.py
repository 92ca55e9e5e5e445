"""What is looked at: pages, films, the browser, and what a file or an installation is."""
