"""Exchange with other libraries; a library is imported only by the function that needs it."""
