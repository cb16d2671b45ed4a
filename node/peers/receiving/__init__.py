"""The receiving end of a link: who is admitted, frames back to messages, memory for what has not ended.

The trainer decides what a message means.
"""
