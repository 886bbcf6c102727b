//! The messages of Perfetto's trace format that a trace of ours needs, field by field as published
//! in `protos/perfetto/trace/` of github.com/google/perfetto (field numbers there never change):
//! `trace_packet.proto`, `clock_snapshot.proto`, `interned_data/interned_data.proto`, and of
//! `track_event/` `track_event.proto`, `track_descriptor.proto`, `process_descriptor.proto`,
//! `counter_descriptor.proto` and `debug_annotation.proto`.

use prost::{Message, Oneof};

/// `Trace` of `trace.proto`: a file is one, and so are concatenated files.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// Its packets, in any order of time.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<TracePacket>,
}

/// `TracePacket`: one event, track or table of names.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// Nanoseconds of the trace's clock.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The writer: interned names are valid for one writer.
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// [`STATE_CLEARED`], [`NEEDS_STATE`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// Names to which events of this and later packets refer by number.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    /// An event.
    #[prost(message, optional, boxed, tag = "11")]
    pub track_event: Option<Box<TrackEvent>>,
    /// A track.
    #[prost(message, optional, boxed, tag = "60")]
    pub track_descriptor: Option<Box<TrackDescriptor>>,
    /// How clocks relate to each other.
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
}

/// `SEQ_INCREMENTAL_STATE_CLEARED`: names given before are void.
pub const STATE_CLEARED: u32 = 1;
/// `SEQ_NEEDS_INCREMENTAL_STATE`: the packet uses names given before.
pub const NEEDS_STATE: u32 = 2;

/// `ClockSnapshot`.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// One instant on each of these clocks.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    /// `BuiltinClock`: [`REALTIME`], [`BOOTTIME`].
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    /// The instant on it, nanoseconds.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// Unix time.
pub const REALTIME: u32 = 1;
/// The clock of packets that do not name one.
pub const BOOTTIME: u32 = 6;

/// `InternedData`.
#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    /// `EventCategory`.
    #[prost(message, repeated, tag = "1")]
    pub event_categories: Vec<Named>,
    /// `EventName`.
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<Named>,
    /// `DebugAnnotationName`.
    #[prost(message, repeated, tag = "3")]
    pub debug_annotation_names: Vec<Named>,
    /// `InternedString`; its text is bytes there, which are encoded alike.
    #[prost(message, repeated, tag = "29")]
    pub debug_annotation_string_values: Vec<Named>,
}

/// `EventCategory`, `EventName`, `DebugAnnotationName` and `InternedString`, which have one form.
#[derive(Clone, PartialEq, Message)]
pub struct Named {
    /// Number, from 1.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The text.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// The track's number, unique among all files that are ever concatenated.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// The parent track.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The process that it represents.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// Its counter.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// `ChildTracksOrdering`: [`EXPLICIT`].
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    /// Its position among its siblings.
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
    /// Its description.
    #[prost(string, optional, tag = "14")]
    pub description: Option<String>,
}

/// Children are ordered by their `sibling_order_rank`.
pub const EXPLICIT: i32 = 3;

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Process id, by which processes are distinguished.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Its name.
    #[prost(string, optional, tag = "6")]
    pub process_name: Option<String>,
    /// Remarks, shown after the name.
    #[prost(string, repeated, tag = "8")]
    pub process_labels: Vec<String>,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// Unit as text.
    #[prost(string, optional, tag = "6")]
    pub unit_name: Option<String>,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// `TrackEvent.Type`: [`SLICE_BEGIN`] and so on.
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    /// The track that it is on.
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    /// Its category, by number.
    #[prost(uint64, repeated, packed = "false", tag = "3")]
    pub category_iids: Vec<u64>,
    /// Its name.
    #[prost(oneof = "NameField", tags = "10, 23")]
    pub name_field: Option<NameField>,
    /// Its arguments.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    /// Events with the same number are joined by arrows, in order of time.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    /// A counter's value.
    #[prost(oneof = "CounterValue", tags = "30, 44")]
    pub counter_value_field: Option<CounterValue>,
}

/// `TYPE_SLICE_BEGIN`.
pub const SLICE_BEGIN: i32 = 1;
/// `TYPE_SLICE_END`: ends the slice of its track that began last.
pub const SLICE_END: i32 = 2;
/// `TYPE_INSTANT`.
pub const INSTANT: i32 = 3;
/// `TYPE_COUNTER`.
pub const COUNTER: i32 = 4;

/// `TrackEvent.name_field`.
#[derive(Clone, PartialEq, Oneof)]
pub enum NameField {
    /// By number.
    #[prost(uint64, tag = "10")]
    NameIid(u64),
    /// As text.
    #[prost(string, tag = "23")]
    Name(String),
}

/// `TrackEvent.counter_value_field`.
#[derive(Clone, PartialEq, Oneof)]
pub enum CounterValue {
    /// An integer.
    #[prost(int64, tag = "30")]
    Integer(i64),
    /// A floating-point number.
    #[prost(double, tag = "44")]
    Double(f64),
}

/// `DebugAnnotation`.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    /// Its name, by number.
    #[prost(uint64, optional, tag = "1")]
    pub name_iid: Option<u64>,
    /// Its value.
    #[prost(oneof = "AnnotationValue", tags = "4, 5, 6, 7, 17")]
    pub value: Option<AnnotationValue>,
}

/// `DebugAnnotation.value`.
#[derive(Clone, PartialEq, Oneof)]
pub enum AnnotationValue {
    /// An integer.
    #[prost(int64, tag = "4")]
    Int(i64),
    /// A floating-point number.
    #[prost(double, tag = "5")]
    Double(f64),
    /// A text.
    #[prost(string, tag = "6")]
    String(String),
    /// A number shown in hexadecimal.
    #[prost(uint64, tag = "7")]
    Pointer(u64),
    /// A text, by number.
    #[prost(uint64, tag = "17")]
    StringIid(u64),
}
