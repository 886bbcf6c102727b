//! Writes packets into a file, one after the other, without keeping them: slices, instants,
//! counters and the tracks that they are on. Which tracks there are and what is on them is
//! `layout`'s.

use std::collections::HashMap;
use std::io::{self, Write};

use prost::Message;

use super::proto::{
    AnnotationValue, BOOTTIME, COUNTER, Clock, ClockSnapshot, CounterValue, DebugAnnotation, INSTANT, InternedData,
    NEEDS_STATE, NameField, Named, REALTIME, SLICE_BEGIN, SLICE_END, STATE_CLEARED, TracePacket, TrackDescriptor,
    TrackEvent,
};

/// Most texts of one kind that get numbers; further ones are written out in place.
const MOST_NAMES: usize = 4_096;
/// Longest text that gets a number, bytes.
const LONGEST_NAME: usize = 128;
/// `Trace.packet`: field 1, length-delimited.
const PACKET_TAG: u8 = 0x0a;

/// A value of an event's argument.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// An integer.
    Int(i64),
    /// A number.
    Real(f64),
    /// A bit pattern, shown in hexadecimal.
    Bits(u64),
    /// A text.
    Text(String),
}

/// An event.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// The table of its row.
    pub category: &'static str,
    /// Its other columns.
    pub args: Vec<(&'static str, Arg)>,
    /// The collective that it is a rank's part of.
    pub flow: Option<u64>,
}

/// How much was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// Slices and instants.
    pub events: u64,
    /// Counters' values.
    pub values: u64,
    /// Tracks.
    pub tracks: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Texts that have numbers.
#[derive(Debug, Default)]
struct Names(HashMap<String, u64>);

impl Names {
    /// The number of a text, which is added to `new` if it had none; none if it gets none.
    fn number(&mut self, text: &str, new: &mut Vec<Named>) -> Option<u64> {
        if let Some(iid) = self.0.get(text) {
            return Some(*iid);
        }
        if self.0.len() >= MOST_NAMES || text.len() > LONGEST_NAME {
            return None;
        }
        let iid = self.0.len() as u64 + 1;
        self.0.insert(text.to_owned(), iid);
        new.push(Named { iid: Some(iid), name: Some(text.to_owned()) });
        Some(iid)
    }
}

/// A trace that is being written.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    sequence: u32,
    categories: Names,
    names: Names,
    arguments: Names,
    texts: Names,
    started: bool,
    buffer: Vec<u8>,
    written: Written,
}

impl<W: Write> Writer<W> {
    /// A trace whose names are those of the writer `sequence` (not 0), with times from about
    /// `at_ns` on. Times are Unix time and the trace's own clock at once.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn new(out: W, sequence: u32, at_ns: i64) -> io::Result<Self> {
        let mut writer = Self {
            out,
            sequence: sequence.max(1),
            categories: Names::default(),
            names: Names::default(),
            arguments: Names::default(),
            texts: Names::default(),
            started: false,
            buffer: Vec::new(),
            written: Written::default(),
        };
        let at = Some(at_ns.max(0).cast_unsigned());
        let clocks = [BOOTTIME, REALTIME].map(|clock_id| Clock { clock_id: Some(clock_id), timestamp: at });
        let clock_snapshot = Some(ClockSnapshot { clocks: clocks.to_vec() });
        writer.put(TracePacket { timestamp: at, clock_snapshot, ..TracePacket::default() })?;
        Ok(writer)
    }

    /// The number of this writer.
    pub fn sequence(&self) -> u32 {
        self.sequence
    }

    /// How much was written so far.
    pub fn written(&self) -> Written {
        self.written
    }

    /// Declares a track, before events are on it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn track(&mut self, descriptor: TrackDescriptor) -> io::Result<()> {
        self.written.tracks += 1;
        self.put(TracePacket { track_descriptor: Some(Box::new(descriptor)), ..TracePacket::default() })
    }

    /// A slice; without an end it goes on to the end of the trace.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn slice(&mut self, track: u64, at_ns: u64, end_ns: Option<u64>, event: Event) -> io::Result<()> {
        self.event(SLICE_BEGIN, track, at_ns, event)?;
        let Some(end_ns) = end_ns else { return Ok(()) };
        let end = TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(track), ..TrackEvent::default() };
        self.put(TracePacket { timestamp: Some(end_ns), track_event: Some(Box::new(end)), ..TracePacket::default() })
    }

    /// A point in time.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn instant(&mut self, track: u64, at_ns: u64, event: Event) -> io::Result<()> {
        self.event(INSTANT, track, at_ns, event)
    }

    /// A counter's value from then on.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn value(&mut self, track: u64, at_ns: u64, value: CounterValue) -> io::Result<()> {
        self.written.values += 1;
        let event = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(track),
            counter_value_field: Some(value),
            ..TrackEvent::default()
        };
        self.put(TracePacket { timestamp: Some(at_ns), track_event: Some(Box::new(event)), ..TracePacket::default() })
    }

    /// Ends the trace and returns the file with everything in it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn event(&mut self, kind: i32, track: u64, at_ns: u64, event: Event) -> io::Result<()> {
        self.written.events += 1;
        let mut new = InternedData::default();
        let category = self.categories.number(event.category, &mut new.event_categories);
        let name = match self.names.number(&event.name, &mut new.event_names) {
            Some(iid) => NameField::NameIid(iid),
            None => NameField::Name(event.name),
        };
        let debug_annotations = event
            .args
            .into_iter()
            .map(|(name, value)| DebugAnnotation {
                name_iid: self.arguments.number(name, &mut new.debug_annotation_names),
                value: Some(match value {
                    Arg::Int(int) => AnnotationValue::Int(int),
                    Arg::Real(real) => AnnotationValue::Double(real),
                    Arg::Bits(bits) => AnnotationValue::Pointer(bits),
                    Arg::Text(text) => match self.texts.number(&text, &mut new.debug_annotation_string_values) {
                        Some(iid) => AnnotationValue::StringIid(iid),
                        None => AnnotationValue::String(text),
                    },
                }),
            })
            .collect();
        let event = TrackEvent {
            r#type: Some(kind),
            track_uuid: Some(track),
            category_iids: category.into_iter().collect(),
            name_field: Some(name),
            debug_annotations,
            flow_ids: event.flow.into_iter().collect(),
            counter_value_field: None,
        };
        self.put(TracePacket {
            timestamp: Some(at_ns),
            interned_data: (new != InternedData::default()).then_some(new),
            track_event: Some(Box::new(event)),
            ..TracePacket::default()
        })
    }

    fn put(&mut self, mut packet: TracePacket) -> io::Result<()> {
        packet.trusted_packet_sequence_id = Some(self.sequence);
        let first = !std::mem::replace(&mut self.started, true);
        packet.sequence_flags = Some(if first { STATE_CLEARED | NEEDS_STATE } else { NEEDS_STATE });
        self.buffer.clear();
        self.buffer.push(PACKET_TAG);
        packet.encode_length_delimited(&mut self.buffer).map_err(io::Error::other)?;
        self.written.bytes += self.buffer.len() as u64;
        self.out.write_all(&self.buffer)
    }
}
