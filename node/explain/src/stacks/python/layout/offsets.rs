//! Where a field lies in `_Py_DebugOffsets`, by version: an interpreter publishes numbers, their
//! order is that of its header.

/// The structures of a version's `_Py_DebugOffsets` after its cookie, version and build kind, up to
/// the last field used here; `None` for a version not known here.
pub(in super::super) fn of(minor: u8) -> Option<&'static [Group]> {
    match minor {
        13 => Some(OFFSETS_3_13),
        14 => Some(OFFSETS_3_14),
        15 => Some(OFFSETS_3_15),
        _ => None,
    }
}

/// One structure with its fields in order, each a 64-bit word.
pub(in super::super) type Group = (&'static str, &'static str);

/// The word of a field, named as `structure.field`.
pub(super) fn position(groups: &[Group], name: &str) -> Option<usize> {
    let (group, field) = name.split_once('.')?;
    let mut index = 0;
    for (name, fields) in groups {
        if *name == group {
            return fields.split(' ').position(|name| name == field).map(|at| index + at);
        }
        index += fields.split(' ').count();
    }
    None
}

const OFFSETS_3_13: &[Group] = &[
    ("runtime", "size finalizing interpreters_head"),
    (
        "interpreter",
        "size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_runtime_state \
         gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder",
    ),
    ("thread", "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"),
    ("frame", "size previous executable instr_ptr localsplus owner"),
    (
        "code",
        "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds \
         co_code_adaptive",
    ),
    ("object", "size ob_type"),
    ("type", "size tp_name tp_repr tp_flags"),
    ("tuple_object", "size ob_item ob_size"),
    ("list_object", "size ob_item ob_size"),
    ("dict_object", "size ma_keys ma_values"),
    ("float_object", "size ob_fval"),
    ("long_object", "size lv_tag ob_digit"),
    ("bytes", "size ob_size ob_sval"),
    ("unicode", "size state length asciiobject_size"),
];

const OFFSETS_3_14: &[Group] = &[
    ("runtime", "size finalizing interpreters_head"),
    (
        "interpreter",
        "size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil \
         gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder \
         code_object_generation tlbc_generation",
    ),
    ("thread", "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"),
    ("frame", "size previous executable instr_ptr localsplus owner stackpointer tlbc_index"),
    (
        "code",
        "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds \
         co_code_adaptive co_tlbc",
    ),
    ("object", "size ob_type"),
    ("type", "size tp_name tp_repr tp_flags"),
    ("tuple_object", "size ob_item ob_size"),
    ("list_object", "size ob_item ob_size"),
    ("set_object", "size used table mask"),
    ("dict_object", "size ma_keys ma_values"),
    ("float_object", "size ob_fval"),
    ("long_object", "size lv_tag ob_digit"),
    ("bytes", "size ob_size ob_sval"),
    ("unicode", "size state length asciiobject_size"),
];

const OFFSETS_3_15: &[Group] = &[
    ("runtime", "size finalizing interpreters_head"),
    (
        "interpreter",
        "size id next threads_head threads_main gc imports_modules sysdict builtins ceval_gil \
         gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder \
         code_object_generation tlbc_generation",
    ),
    (
        "thread",
        "size prev next interp current_frame base_frame last_profiled_frame last_profiled_frame_seq \
         thread_id native_thread_id datastack_chunk status holds_gil gil_requested current_exception \
         exc_state",
    ),
    ("err_stackitem", "exc_value"),
    ("frame", "size previous executable instr_ptr localsplus owner stackpointer tlbc_index"),
    (
        "code",
        "size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds \
         co_code_adaptive co_tlbc",
    ),
    ("object", "size ob_type"),
    ("type", "size tp_name tp_repr tp_flags tp_basicsize tp_dictoffset"),
    ("heap_type_object", "size ht_cached_keys"),
    ("tuple_object", "size ob_item ob_size"),
    ("list_object", "size ob_item ob_size"),
    ("set_object", "size used table mask"),
    ("dict_object", "size ma_keys ma_values"),
    ("float_object", "size ob_fval"),
    ("long_object", "size lv_tag ob_digit"),
    ("bytes", "size ob_size ob_sval"),
    ("unicode", "size state length asciiobject_size compactunicodeobject_size"),
];
