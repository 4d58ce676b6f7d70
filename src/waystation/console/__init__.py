"""What people look at: the console's API and pages."""
