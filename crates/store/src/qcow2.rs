//! Layers of a disk, in QEMU's format qcow2: read strictly, and several merged to one.
//!
//! ```text
//! header         version 3, no features, no backing file: what lies below is said elsewhere
//! L1 table       for each stretch of the disk its L2 table, or none
//! L2 tables      for each cluster of a stretch: not here | zeros | where its data are
//! reference      which clusters of the file are in use; not believed, only kept apart
//!   counts
//! ```
//! Numbers are big endian. `pando-vmm` makes a layer and QEMU fills it, and a guest may have
//! taken that QEMU over. So what Pando's layers do not have is refused, every offset is in the
//! file, and no cluster of it serves twice: merging never takes more time or space than the
//! disk is large.

use pando_sys::file::{is_zero, share_range, write_sparse};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

const MAGIC: &[u8; 4] = b"QFI\xfb";
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 104;
/// log2 of the bits of a reference count.
const REFCOUNT_ORDER: u32 = 4;

/// Cluster sizes of layers, as powers of two: 16 KiB now, 64 KiB before.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = MERGED_BITS..=16;
/// A disk has 8 GiB; this is what the tables of a layer in memory are bounded by.
const VIRTUAL_BYTES_MAX: u64 = 1 << 40;
/// What a layer may have beyond the disk: tables, and clusters that were freed.
const SURPLUS_BYTES: u64 = 64 << 20;
/// Largest table of reference counts that QEMU reads.
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;

/// Bits of an entry that hold an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// The cluster has one user. All have, where there are no snapshots inside the file.
const ONE_USER: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;
const ZEROS: u64 = 1;

/// log2 of a merged layer's cluster size.
const MERGED_BITS: u32 = 14;
/// A merged layer's unit: every other cluster size is a multiple of it.
const MERGED_BYTES: u64 = 1 << MERGED_BITS;
/// Entries of a merged layer's L2 table.
const STRETCH_CLUSTERS: u64 = MERGED_BYTES / 8;
/// What one of them maps.
const STRETCH_BYTES: u64 = STRETCH_CLUSTERS * MERGED_BYTES;
/// Reference counts in one cluster.
const REFCOUNTS: u64 = MERGED_BYTES / 2;

/// Bytes copied in one piece.
const PIECE_BYTES: u64 = 1 << 20;

/// Why layers of a disk cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum Qcow2Error {
    /// One cannot be read, or the merged one not be written.
    #[error("cannot merge layers of the disk")]
    Io(#[from] io::Error),
    /// It is another file.
    #[error("not a layer of a disk")]
    Foreign,
    /// It has what no layer of Pando's has.
    #[error("the layer of the disk has {0}")]
    Unsupported(&'static str),
    /// It contradicts itself.
    #[error("the layer of the disk is malformed: {0}")]
    Malformed(&'static str),
}

use Qcow2Error::{Malformed, Unsupported};

/// Makes one layer of several, the lowest first: over anything it reads as they do. Where
/// none of them has a cluster, neither has it.
///
/// # Errors
/// See [`Qcow2Error`]; the target may hold anything then.
pub fn merge(layers: &[File], target: &File) -> Result<(), Qcow2Error> {
    let images: Result<Vec<_>, _> = layers.iter().map(Image::open).collect();
    let mut images = images?;
    let virtual_bytes = images.first().map_or(0, |image| image.virtual_bytes);
    if images
        .iter()
        .any(|image| image.virtual_bytes != virtual_bytes)
    {
        return Err(Malformed("it is of a disk of another size"));
    }
    let mut writer = Writer::new(target, virtual_bytes);
    for stretch in 0..virtual_bytes.div_ceil(STRETCH_BYTES) {
        let topmost = topmost(&mut images, stretch * STRETCH_BYTES)?;
        writer.add(&images, stretch, &topmost)?;
    }
    Ok(writer.finish()?)
}

/// What a layer has of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cluster {
    /// Nothing: a lower layer decides.
    Absent,
    Zeros,
    /// Where its data begin in the file.
    Data(u64),
}

/// What the merged layer has of a cluster, and of which layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pick {
    layer: usize,
    cluster: Cluster,
}

/// For each cluster of a stretch what the topmost layer says that has it.
fn topmost(images: &mut [Image<'_>], from: u64) -> Result<Vec<Pick>, Qcow2Error> {
    let absent = Pick {
        layer: 0,
        cluster: Cluster::Absent,
    };
    let mut picks = vec![absent; STRETCH_CLUSTERS as usize];
    for (layer, image) in images.iter_mut().enumerate().rev() {
        let Some(table) = image.table_of(from)? else {
            continue;
        };
        let undecided = picks.iter_mut().enumerate();
        for (index, pick) in undecided.filter(|(_, pick)| pick.cluster == Cluster::Absent) {
            let offset = from + index as u64 * MERGED_BYTES;
            let cluster = table.at(offset);
            *pick = Pick { layer, cluster };
        }
    }
    Ok(picks)
}

/// A layer that is read.
struct Image<'f> {
    file: &'f File,
    length: u64,
    virtual_bytes: u64,
    cluster_bytes: u64,
    /// Where the L2 tables are, 0 for none.
    l1: Vec<u64>,
    taken: Taken,
    /// The table that was read last; each is read once, for offsets only grow.
    table: Option<Table>,
}

/// An L2 table.
struct Table {
    number: usize,
    cluster_bytes: u64,
    clusters: Vec<Cluster>,
}

impl Table {
    /// What is there of the merged layer's cluster at `offset`, which this table maps.
    fn at(&self, offset: u64) -> Cluster {
        let index = offset / self.cluster_bytes % self.clusters.len() as u64;
        match self.clusters[index as usize] {
            Cluster::Data(data) => Cluster::Data(data + offset % self.cluster_bytes),
            other => other,
        }
    }
}

/// The clusters of a file that were found to serve something.
struct Taken {
    cluster_bytes: u64,
    clusters: u64,
    bits: Vec<u64>,
}

impl Taken {
    fn new(length: u64, cluster_bytes: u64) -> Self {
        let clusters = length.div_ceil(cluster_bytes);
        Self {
            cluster_bytes,
            clusters,
            bits: vec![0; clusters.div_ceil(64) as usize],
        }
    }

    fn take(&mut self, offset: u64, bytes: u64) -> Result<(), Qcow2Error> {
        if !offset.is_multiple_of(self.cluster_bytes) {
            return Err(Malformed("an offset is within a cluster"));
        }
        let first = offset / self.cluster_bytes;
        let end = first.checked_add(bytes.div_ceil(self.cluster_bytes));
        let end = end.filter(|end| *end <= self.clusters);
        for cluster in first..end.ok_or(Malformed("an offset is beyond the file"))? {
            let bits = &mut self.bits[(cluster / 64) as usize];
            let bit = 1 << (cluster % 64);
            if *bits & bit != 0 {
                return Err(Malformed("a cluster is used twice"));
            }
            *bits |= bit;
        }
        Ok(())
    }
}

/// The fields of a header that matter.
struct Header {
    cluster_bytes: u64,
    virtual_bytes: u64,
    l1_entries: u64,
    l1_offset: u64,
    refcounts_offset: u64,
    refcounts_clusters: u64,
}

impl Header {
    fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Qcow2Error> {
        let small =
            |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let large =
            |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        if bytes[..4] != *MAGIC {
            return Err(Qcow2Error::Foreign);
        }
        let refused = [
            (small(4) != VERSION, "another version"),
            (large(8) != 0 || small(16) != 0, "a backing file of its own"),
            (!CLUSTER_BITS.contains(&small(20)), "another cluster size"),
            (small(32) != 0, "encryption"),
            (small(60) != 0 || large(64) != 0, "snapshots inside"),
            (large(72) != 0, "an incompatible feature"),
            (large(88) != 0, "a bitmap, or a raw twin"),
            (
                small(96) != REFCOUNT_ORDER,
                "another size of reference counts",
            ),
        ];
        if let Some((_, what)) = refused.iter().find(|(found, _)| *found) {
            return Err(Unsupported(what));
        }
        let cluster_bytes = 1u64 << small(20);
        let virtual_bytes = large(24);
        let fits = (1..=VIRTUAL_BYTES_MAX).contains(&virtual_bytes)
            && virtual_bytes.is_multiple_of(512)
            && (HEADER_BYTES as u64..=cluster_bytes).contains(&u64::from(small(100)));
        if !fits {
            return Err(Malformed("its header has impossible sizes"));
        }
        Ok(Self {
            cluster_bytes,
            virtual_bytes,
            l1_entries: u64::from(small(36)),
            l1_offset: large(40),
            refcounts_offset: large(48),
            refcounts_clusters: u64::from(small(56)),
        })
    }
}

impl<'f> Image<'f> {
    fn open(file: &'f File) -> Result<Self, Qcow2Error> {
        let length = file.metadata()?.len();
        let mut header = [0; HEADER_BYTES];
        let read = file.read_exact_at(&mut header, 0);
        read.map_err(|_| Qcow2Error::Foreign)?;
        let header = Header::parse(&header)?;
        if length > 2 * header.virtual_bytes + SURPLUS_BYTES {
            return Err(Malformed("it is longer than its disk can make it"));
        }
        let mut image = Self {
            file,
            length,
            virtual_bytes: header.virtual_bytes,
            cluster_bytes: header.cluster_bytes,
            l1: Vec::new(),
            taken: Taken::new(length, header.cluster_bytes),
            table: None,
        };
        image.taken.take(0, header.cluster_bytes)?;
        image.take_refcounts(&header)?;
        image.read_l1(&header)?;
        Ok(image)
    }

    /// The counts are not used: every cluster that is read has one user, or it is refused.
    fn take_refcounts(&mut self, header: &Header) -> Result<(), Qcow2Error> {
        let bytes = header.refcounts_clusters * header.cluster_bytes;
        if bytes == 0 || bytes > REFCOUNT_TABLE_BYTES_MAX {
            return Err(Malformed(
                "its table of reference counts has an impossible size",
            ));
        }
        self.taken.take(header.refcounts_offset, bytes)?;
        for block in self.numbers(header.refcounts_offset, bytes / 8)? {
            if block != 0 {
                self.taken.take(block, header.cluster_bytes)?;
            }
        }
        Ok(())
    }

    fn read_l1(&mut self, header: &Header) -> Result<(), Qcow2Error> {
        let needed = self.virtual_bytes.div_ceil(self.table_bytes());
        if header.l1_entries < needed || header.l1_entries > needed + self.cluster_bytes / 8 {
            return Err(Malformed("its L1 table has an impossible size"));
        }
        self.taken.take(header.l1_offset, header.l1_entries * 8)?;
        let mut entries = self.numbers(header.l1_offset, header.l1_entries)?;
        for (index, entry) in entries.iter_mut().enumerate() {
            if *entry & !(OFFSET | ONE_USER) != 0 {
                return Err(Malformed("a reserved bit of its L1 table is set"));
            }
            *entry &= OFFSET;
            if *entry == 0 {
                continue;
            }
            if index as u64 >= needed {
                return Err(Malformed("a table is beyond the disk"));
            }
            self.taken.take(*entry, self.cluster_bytes)?;
        }
        self.l1 = entries;
        Ok(())
    }

    /// What one L2 table maps.
    fn table_bytes(&self) -> u64 {
        self.cluster_bytes / 8 * self.cluster_bytes
    }

    /// The table that maps `offset` of the disk, if there is one.
    fn table_of(&mut self, offset: u64) -> Result<Option<&Table>, Qcow2Error> {
        let number = (offset / self.table_bytes()) as usize;
        if self.l1[number] == 0 {
            return Ok(None);
        }
        if self
            .table
            .as_ref()
            .is_none_or(|table| table.number != number)
        {
            self.table = Some(self.read_table(number)?);
        }
        Ok(self.table.as_ref())
    }

    fn read_table(&mut self, number: usize) -> Result<Table, Qcow2Error> {
        let begin = number as u64 * self.table_bytes();
        let mut clusters = Vec::new();
        for (entry, index) in self
            .numbers(self.l1[number], self.cluster_bytes / 8)?
            .into_iter()
            .zip(0u64..)
        {
            let cluster = self.cluster(entry)?;
            let beyond = begin + index * self.cluster_bytes >= self.virtual_bytes;
            if beyond && cluster != Cluster::Absent {
                return Err(Malformed("a cluster is beyond the disk"));
            }
            clusters.push(cluster);
        }
        Ok(Table {
            number,
            cluster_bytes: self.cluster_bytes,
            clusters,
        })
    }

    fn cluster(&mut self, entry: u64) -> Result<Cluster, Qcow2Error> {
        if entry & COMPRESSED != 0 {
            return Err(Unsupported("compressed clusters"));
        }
        if entry & !(OFFSET | ONE_USER | ZEROS) != 0 {
            return Err(Malformed("a reserved bit of an L2 table is set"));
        }
        let offset = entry & OFFSET;
        if offset != 0 {
            self.taken.take(offset, self.cluster_bytes)?;
        } else if entry & ONE_USER != 0 {
            return Err(Malformed("a cluster is in use and nowhere"));
        }
        Ok(match (entry & ZEROS, offset) {
            // It may have a place that it keeps for later.
            (ZEROS, _) => Cluster::Zeros,
            (_, 0) => Cluster::Absent,
            (_, data) => Cluster::Data(data),
        })
    }

    /// Big endian numbers of the file.
    fn numbers(&self, offset: u64, count: u64) -> Result<Vec<u64>, Qcow2Error> {
        let mut bytes = vec![0; count as usize * 8];
        self.file.read_exact_at(&mut bytes, offset)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        Ok(numbers
            .iter()
            .map(|number| u64::from_be_bytes(*number))
            .collect())
    }

    /// Reads data. QEMU may end a file within its last cluster: the rest of it are zeros.
    fn read(&self, buffer: &mut Vec<u8>, offset: u64, bytes: u64) -> io::Result<()> {
        let there = bytes.min(self.length.saturating_sub(offset)) as usize;
        buffer.clear();
        buffer.resize(bytes as usize, 0);
        self.file.read_exact_at(&mut buffer[..there], offset)
    }
}

/// Writes a merged layer: header, L1 table, then data and L2 tables as they come, the
/// reference counts last.
struct Writer<'f> {
    file: &'f File,
    virtual_bytes: u64,
    l1: Vec<u64>,
    /// Where the next cluster goes.
    end: u64,
    /// The file system shares blocks, as far as is known.
    shares: bool,
    buffer: Vec<u8>,
}

impl<'f> Writer<'f> {
    fn new(file: &'f File, virtual_bytes: u64) -> Self {
        let l1 = vec![0; virtual_bytes.div_ceil(STRETCH_BYTES) as usize];
        let l1_bytes = (l1.len() as u64 * 8).next_multiple_of(MERGED_BYTES);
        Self {
            file,
            virtual_bytes,
            l1,
            end: MERGED_BYTES + l1_bytes,
            shares: true,
            buffer: Vec::new(),
        }
    }

    fn add(&mut self, images: &[Image<'_>], stretch: u64, picks: &[Pick]) -> io::Result<()> {
        if picks.iter().all(|pick| pick.cluster == Cluster::Absent) {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(picks.len());
        while let Some(pick) = picks.get(entries.len()) {
            match pick.cluster {
                Cluster::Absent => entries.push(0),
                Cluster::Zeros => entries.push(ZEROS),
                Cluster::Data(data) => {
                    let bytes = neighbours(&picks[entries.len()..]) * MERGED_BYTES;
                    self.copy(&images[pick.layer], data, bytes, &mut entries)?;
                }
            }
        }
        self.l1[stretch as usize] = self.end | ONE_USER;
        self.file.write_all_at(&to_bytes(&entries), self.end)?;
        self.end += MERGED_BYTES;
        Ok(())
    }

    /// Takes neighbouring clusters over, and adds an entry for each.
    fn copy(
        &mut self,
        image: &Image<'_>,
        data: u64,
        bytes: u64,
        entries: &mut Vec<u64>,
    ) -> io::Result<()> {
        if self.shares && data + bytes <= image.length {
            self.shares = share_range(image.file, data, self.file, self.end, bytes)?;
            if self.shares {
                for offset in (0..bytes).step_by(MERGED_BYTES as usize) {
                    entries.push((self.end + offset) | ONE_USER);
                }
                self.end += bytes;
                return Ok(());
            }
        }
        image.read(&mut self.buffer, data, bytes)?;
        let mut kept = 0;
        for at in (0..bytes as usize).step_by(MERGED_BYTES as usize) {
            let cluster = at..at + MERGED_BYTES as usize;
            if is_zero(&self.buffer[cluster.clone()]) {
                entries.push(ZEROS);
            } else {
                entries.push((self.end + kept as u64) | ONE_USER);
                self.buffer.copy_within(cluster, kept);
                kept += MERGED_BYTES as usize;
            }
        }
        write_sparse(self.file, self.end, &self.buffer[..kept])?;
        self.end += kept as u64;
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        let (table_clusters, blocks) = refcount_clusters(self.end / MERGED_BYTES);
        let table_offset = self.end;
        let first_block = table_offset + table_clusters * MERGED_BYTES;
        let clusters = self.end / MERGED_BYTES + table_clusters + blocks;
        self.file.set_len(clusters * MERGED_BYTES)?;
        let places = (0..blocks).map(|block| first_block + block * MERGED_BYTES);
        let places: Vec<u64> = places.collect();
        self.file.write_all_at(&to_bytes(&places), table_offset)?;
        for (place, first) in places.iter().zip((0..).step_by(REFCOUNTS as usize)) {
            let counted = REFCOUNTS.min(clusters - first) as usize;
            self.file.write_all_at(&[0, 1].repeat(counted), *place)?;
        }
        self.file.write_all_at(&to_bytes(&self.l1), MERGED_BYTES)?;
        self.end = table_offset;
        self.file.write_all_at(&self.header(table_clusters), 0)
    }

    fn header(&self, table_clusters: u64) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_BYTES + 8);
        header.extend(MAGIC);
        header.extend(VERSION.to_be_bytes());
        header.extend([0; 12]); // backing file: none
        header.extend(MERGED_BITS.to_be_bytes());
        header.extend(self.virtual_bytes.to_be_bytes());
        header.extend(0u32.to_be_bytes()); // encryption: none
        header.extend((self.l1.len() as u32).to_be_bytes());
        header.extend(MERGED_BYTES.to_be_bytes()); // L1 table
        header.extend(self.end.to_be_bytes()); // table of reference counts
        header.extend((table_clusters as u32).to_be_bytes());
        header.extend([0; 12]); // snapshots inside: none
        header.extend([0; 24]); // features: none
        header.extend(REFCOUNT_ORDER.to_be_bytes());
        header.extend((HEADER_BYTES as u32).to_be_bytes());
        header.extend([0; 8]); // end of the header's extensions
        header
    }
}

/// How many clusters at the beginning are one piece of one layer's file.
fn neighbours(picks: &[Pick]) -> u64 {
    let next = |pair: &&[Pick]| {
        let expected = match pair[0].cluster {
            Cluster::Data(data) => Cluster::Data(data + MERGED_BYTES),
            _ => return false,
        };
        pair[1].layer == pair[0].layer && pair[1].cluster == expected
    };
    let most = (PIECE_BYTES / MERGED_BYTES) as usize - 1;
    1 + picks.windows(2).take(most).take_while(next).count() as u64
}

/// Clusters of the table of reference counts, and blocks of counts, for a file of so many
/// clusters and these.
fn refcount_clusters(others: u64) -> (u64, u64) {
    let (mut table, mut blocks) = (1, 1);
    loop {
        let needed_blocks = (others + table + blocks).div_ceil(REFCOUNTS);
        let needed_table = (needed_blocks * 8).div_ceil(MERGED_BYTES);
        if (needed_table, needed_blocks) == (table, blocks) {
            return (table, blocks);
        }
        (table, blocks) = (needed_table, needed_blocks);
    }
}

fn to_bytes(numbers: &[u64]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| number.to_be_bytes())
        .collect()
}

#[cfg(test)]
mod tests;
