"""SQL texts to statements, and statements to text."""
