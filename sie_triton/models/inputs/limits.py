"""Limits of the inputs of a request: texts, images, sounds, documents, conversations.

Those that an operator sets are in `settings/`; these are beyond all real inputs.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Inputs beyond these are refused by name."""

    # A text that is read whole: its tokenizer takes about 200 bytes and 2 µs for each character.
    max_text_characters: int = 2_000_000
    max_window_tokens: int = 4_000_000  # in all rows of a text; more would take hours, and gigabytes between steps
    max_start_characters: int = 500_000  # that make too few tokens: spaces, or one endless word
    max_word_characters: int = 1000  # distance of the search for the end of a word
    # Beyond those that are read: WordPiece turns a word of 100 characters into 100 tokens, and a longer one into one.
    margin_tokens: int = 256
    characters_per_token: int = 8  # of a first guess, sufficient for most texts; others are cut again, 4 times as long
    max_usual_growth: int = 20  # characters that a tokenizer makes of one: NFKD makes 18 of ﷺ
    free_characters: int = 1000  # that it may make besides
    normalized_characters: int = 1000  # at a time

    # Real pictures keep these two, and resizing others takes long.
    max_image_side: int = 65_500
    max_image_aspect: int = 200
    # A progressive JPEG is decoded again for each of its scans. Cameras and editors write about ten.
    max_scans: int = 100
    max_scanned_pixels: int = 2_000_000_000
    # Pillow reads containers in Python, part by part.
    max_header_parts: int = 20_000  # before the pixels
    max_image_parts: int = 100_000
    max_dear_parts: int = 64  # that cost up to 50 ms a megabyte, or 2.5 ms each
    max_number_bytes: int = 4_000_000  # of a TIFF's tags that are numbers, 200 ms a megabyte
    max_exif_bytes: int = 1 << 18  # decoded in Python
    max_rle_pixels: int = 2_500_000  # of a run-length encoded BMP, decoded in Python

    min_sampling_rate_hz: int = 1_000  # resampling a lower rate would produce much data from a small file
    max_sampling_rate_hz: int = 384_000
    max_magnitude: float = 1e9  # of a sample: more than in any file, scaled or not, and small enough to be squared
    min_decoded_share: float = 0.9  # of the samples in the header, else a file is truncated; MP3 has no exact length
    samples_at_once: int = 1 << 20
    max_values_per_s: int = 384_000  # samples of all channels: a silent file is small, but costly

    max_archive_entries: int = 10_000  # zipfile reads them in Python
    max_unpacked_ratio: int = 200  # libraries unpack no more than an archive lists
    max_unpacked_bytes: int = 1_000_000_000

    pdf_step_s: float = 10.0  # to open a file, and for each page
    pdf_s: int = 600  # for the whole process
    pdf_poll_s: float = 0.1  # between two looks whether the request is over
    pdf_memory_bytes: int = 1_000_000_000  # besides that for the file
    max_page_pixels: int = 4_200_000  # of a drawn page
    max_page_points: int = 1_000_000
    max_selection_characters: int = 10_000  # of the parameter pages

    template_start_s: float = 15.0  # of the process that writes conversations
    template_s: float = 5.0  # for one conversation; other requests of the model wait
    template_memory_bytes: int = 256 << 20
    max_conversation_characters: int = 1 << 20
    max_conversation_bytes: int = 13 << 20  # JSON escapes a character with up to 12 bytes
    max_kept_conversations: int = 256  # most requests have the same instruction


LIMITS = InputLimits()
