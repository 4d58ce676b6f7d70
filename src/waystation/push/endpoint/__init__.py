"""The endpoint node: accepts notifications of app servers and delivers or stores them."""
