"""The generated parts of the documentation: tables and plots of committed records."""
