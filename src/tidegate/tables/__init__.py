"""Tables, without IO: their schemas over time, the statements about them, and rows on their way in and out."""
