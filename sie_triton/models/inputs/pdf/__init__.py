"""Pages of PDF files as images, drawn by a confined process.

draw      the confined process
document  the confined process as its parent sees it
"""
