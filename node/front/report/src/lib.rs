//! What people look at elsewhere, made of rows and verdicts: a job as one HTML file ([`html`]), its
//! rows as a trace for Perfetto ([`perfetto`]).
//!
//! Values in, bytes out: no sockets, no questions asked here. Who is asked is the command line's.

pub mod html;
pub mod perfetto;
