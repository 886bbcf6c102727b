//! What people look at elsewhere, made of rows and verdicts: a Perfetto trace ([`perfetto`]).
//!
//! Values in, bytes out: no sockets, no questions asked here. Who is asked is the command line's.

pub mod perfetto;
