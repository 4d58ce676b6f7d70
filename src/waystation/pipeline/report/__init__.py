"""One page that tells what happened: tables, drawings, and the page around them."""
