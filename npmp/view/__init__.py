"""Views: pages, films, the browser, and descriptions of files and of the installation."""
