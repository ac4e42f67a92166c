"""Pieces of page that more than one page shows. Each is a function that writes with Streamlit what a report or ledger says."""
