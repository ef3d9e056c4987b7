//! Sequences of a cache, imports and pins.

use crate::cache::Cache;
use crate::convert::{c_string, list_of, pointer_of};
use crate::status::{check, failed, Result, Status};
use crate::sys;
use crate::values::{raw_ticket, Holder, ImportState, Sequence, Ticket, Urgency};
use std::ptr;

options! {
    /// Options of a new sequence. Zero means the default.
    SequenceOptions to kvarena_sequence_options {
        /// 0: no maximum below that of the cache.
        max_length_tokens: i64,
        /// When it began, for reports; 0: unknown.
        since_ns: i64,
        /// When it should have ended, for reports; 0: none.
        deadline_ns: i64,
        /// The engine's own id of the request or tenant; 0: the sequence's own id, for a fork the
        /// owner of its parent.
        owner: u64,
        /// Tokens of an encoder that the layers of cross groups read.
        cross_tokens: i32,
    }
}

answer! {
    /// One sequence's figures.
    SequenceInfo from kvarena_sequence_info {
        /// Tokens.
        length_tokens: i64,
        /// Entries in its table, with reserved capacity.
        num_blocks: i64,
        /// 0: none.
        max_length_tokens: i64,
        /// `num_blocks * block_size - length`.
        waste_tokens: i64,
        /// As given.
        since_ns: i64,
        /// As given, or set since.
        deadline_ns: i64,
        /// Whose content it is; never 0.
        owner: u64,
        /// The holder of its block references.
        holder: Option<Holder>,
        /// Whether others fill it.
        import_state: ImportState,
        /// Leading tokens whose values the prefix cache was told.
        known_tokens: i64,
        /// Leading blocks that the prefix cache knows.
        registered_blocks: i64,
        /// Of these, those that others can find.
        published_blocks: i64,
    }
}

/// What a pin holds, and for whom. Zero means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PinOptions {
    /// Of the sequence's table.
    pub first_block: i64,
    /// From there on; 0: all that hold tokens.
    pub num_blocks: i64,
    /// For whom; 0: the owner of the sequence.
    pub owner: u64,
    /// For reports, such as "transfer".
    pub purpose: Option<String>,
    /// For reports; 0: unknown.
    pub since_ns: i64,
    /// For reports; 0: none.
    pub deadline_ns: i64,
}

// SAFETY of the calls below: handle, options and results are valid, and slices live until the return.
impl Cache {
    /// Creates an empty sequence.
    pub fn create_sequence(&mut self, options: &SequenceOptions) -> Result<Sequence> {
        let mut id = 0;
        self.check(unsafe { sys::kvarena_sequence_create(self.raw, &options.raw(), &mut id) })?;
        Ok(Sequence::written(id))
    }

    /// Creates a sequence that shares the first `length_tokens` tokens of `parent`: the same blocks,
    /// each with one more reference. Whoever first appends to a partly shared last block copies it.
    pub fn fork(
        &mut self,
        parent: Sequence,
        length_tokens: i64,
        options: &SequenceOptions,
    ) -> Result<Sequence> {
        let (options, mut id) = (options.raw(), 0);
        self.check(unsafe {
            sys::kvarena_sequence_fork(self.raw, parent.raw(), length_tokens, &options, &mut id)
        })?;
        Ok(Sequence::written(id))
    }

    /// Creates a sequence of `num_tokens` tokens whose blocks others fill: a transfer, a load. Until
    /// [`publish_import`](Self::publish_import) it can be asked and destroyed only. The default
    /// urgency is admission.
    pub fn import_sequence(
        &mut self,
        num_tokens: i64,
        options: &SequenceOptions,
        urgency: Urgency,
    ) -> Result<Sequence> {
        let (options, mut id) = (options.raw(), 0);
        self.check(unsafe {
            sys::kvarena_sequence_import(self.raw, num_tokens, &options, urgency.into(), &mut id)
        })?;
        Ok(Sequence::written(id))
    }

    /// Says that an imported sequence's tokens have been written.
    pub fn publish_import(&mut self, sequence: Sequence) -> Result<()> {
        check(unsafe { sys::kvarena_sequence_publish_import(self.raw, sequence.raw()) })
    }

    /// Says that the tokens of an import will not come: only destroy is left. Pass a ticket there
    /// while writes may still arrive.
    pub fn fail_import(&mut self, sequence: Sequence) -> Result<()> {
        check(unsafe { sys::kvarena_sequence_fail_import(self.raw, sequence.raw()) })
    }

    /// Cuts a sequence and releases the blocks behind its new end. A ticket protects what queued work
    /// on another stream still reads.
    pub fn truncate(
        &mut self,
        sequence: Sequence,
        length_tokens: i64,
        ticket: Option<Ticket>,
    ) -> Result<()> {
        let ticket = raw_ticket(ticket);
        self.check(unsafe {
            sys::kvarena_sequence_truncate(self.raw, sequence.raw(), length_tokens, ticket)
        })
    }

    /// Ends sequences in the order given, all or nothing, against a ticket if there is one. The error
    /// names the first unknown or repeated sequence.
    pub fn destroy(&mut self, sequences: &[Sequence], ticket: Option<Ticket>) -> Result<()> {
        let (ids, ticket) = (sequences.as_ptr().cast::<u64>(), raw_ticket(ticket));
        self.check(unsafe { sys::kvarena_sequence_destroy(self.raw, ids, sequences.len(), ticket) })
    }

    /// Takes blocks so that `capacity_tokens` fit without another allocation. The length stays. The
    /// default urgency is admission.
    pub fn reserve(
        &mut self,
        sequence: Sequence,
        capacity_tokens: i64,
        urgency: Urgency,
    ) -> Result<()> {
        let urgency = urgency.into();
        self.check(unsafe {
            sys::kvarena_sequence_reserve(self.raw, sequence.raw(), capacity_tokens, urgency)
        })
    }

    /// Promises blocks so that `capacity_tokens` will fit; they stay available but not to others. With
    /// groups the sequence is then not refused in steps that begin one block of a window or a chunk at
    /// most. Blocks that forks, pins or hits share with it are not counted.
    pub fn promise(&mut self, sequence: Sequence, capacity_tokens: i64) -> Result<()> {
        self.check(unsafe {
            sys::kvarena_sequence_promise(self.raw, sequence.raw(), capacity_tokens)
        })
    }

    /// Sets when the sequence should have ended, for reports and health; 0: none.
    pub fn set_deadline(&mut self, sequence: Sequence, deadline_ns: i64) -> Result<()> {
        check(unsafe { sys::kvarena_sequence_set_deadline(self.raw, sequence.raw(), deadline_ns) })
    }

    /// Reads a sequence's figures.
    pub fn sequence_info(&self, sequence: Sequence) -> Result<SequenceInfo> {
        let mut info = sys::kvarena_sequence_info::default();
        check(unsafe { sys::kvarena_sequence_ask(self.raw, sequence.raw(), &mut info) })?;
        Ok((&info).into())
    }

    /// Returns the ids of a sequence's blocks.
    pub fn sequence_blocks(&self, sequence: Sequence) -> Result<Vec<i32>> {
        list_of(|out, room, count| unsafe {
            sys::kvarena_sequence_blocks(self.raw, sequence.raw(), out, room, count)
        })
        .map_err(failed)
    }

    /// Returns the slot of token `index`: block * block_size + offset.
    pub fn slot(&self, sequence: Sequence, index: i64) -> Result<i64> {
        let mut slot = 0;
        check(unsafe { sys::kvarena_sequence_slot(self.raw, sequence.raw(), index, &mut slot) })?;
        Ok(slot)
    }

    /// Writes the block tables of sequences as rows: row i begins at `i * row_stride`, has
    /// `row_stride` entries, and is -1 past the blocks that hold tokens. `lengths` gets the tokens of
    /// each sequence.
    pub fn copy_tables(
        &self,
        sequences: &[Sequence],
        tables: &mut [i32],
        row_stride: usize,
        lengths: Option<&mut [i32]>,
    ) -> Result<()> {
        let needed = sequences.len().saturating_mul(row_stride);
        if tables.len() < needed {
            return Err(Status::wrong_length(tables.len(), needed).into());
        }
        let lengths = match lengths {
            Some(lengths) if lengths.len() < sequences.len() => {
                return Err(Status::wrong_length(lengths.len(), sequences.len()).into());
            }
            Some(lengths) => lengths.as_mut_ptr(),
            None => ptr::null_mut(),
        };
        let (ids, tables) = (sequences.as_ptr().cast::<u64>(), tables.as_mut_ptr());
        check(unsafe {
            let count = sequences.len();
            sys::kvarena_sequence_tables(self.raw, ids, count, tables, row_stride, lengths)
        })
    }

    /// Returns every existing sequence, in order of slots.
    pub fn sequences(&self) -> Result<Vec<Sequence>> {
        let ids = list_of(|out, room, count| unsafe {
            sys::kvarena_sequence_list(self.raw, out, room, count)
        })
        .map_err(failed)?;
        Ok(ids.into_iter().map(Sequence::written).collect())
    }

    /// Holds blocks of a sequence that hold tokens, by a holder of its own: the blocks stay, with
    /// their bytes, when the sequence is cut or destroyed or grows.
    pub fn pin(&mut self, sequence: Sequence, options: &PinOptions) -> Result<Holder> {
        let purpose = options.purpose.as_deref().map(c_string);
        let raw = sys::kvarena_pin_options {
            first_block: options.first_block,
            num_blocks: options.num_blocks,
            owner: options.owner,
            purpose: pointer_of(&purpose),
            since_ns: options.since_ns,
            deadline_ns: options.deadline_ns,
            ..Default::default()
        };
        let mut pin = 0;
        self.check(unsafe { sys::kvarena_pin_create(self.raw, sequence.raw(), &raw, &mut pin) })?;
        Ok(Holder::written(pin))
    }

    /// Returns the ids of a pin's blocks.
    pub fn pin_blocks(&self, pin: Holder) -> Result<Vec<i32>> {
        list_of(|out, room, count| unsafe {
            sys::kvarena_pin_blocks(self.raw, pin.raw(), out, room, count)
        })
        .map_err(failed)
    }

    /// Releases what a pin holds and ends it, against a ticket if there is one.
    pub fn unpin(&mut self, pin: Holder, ticket: Option<Ticket>) -> Result<()> {
        self.check(unsafe { sys::kvarena_pin_release(self.raw, pin.raw(), raw_ticket(ticket)) })
    }
}
