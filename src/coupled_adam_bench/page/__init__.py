"""What a page is made of: its blocks and how numbers are written. It renders nothing."""
