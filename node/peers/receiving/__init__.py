"""The receiving end of a link: who is admitted, frames back to messages, memory for what has not ended.

What a message means is the trainer's.
"""
