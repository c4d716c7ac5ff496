//! What a VM is spawned from, and how that gets into its slot.

use crate::EngineError;
use crate::bake::{DISKS_OF_A_BOOT, Ingredients, Plan, link_boot};
use crate::engine::Engine;
use crate::shims::no_space_or;
use pando_shim::spec::{self, Begin};
use pando_store::{
    Layer, Machine, Manifest, MemorySource, SandboxDir, SavedState, Snapshot, StoreError,
};
use pando_types::Size;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

const CANNOT_LAY_OUT: &str = "cannot lay out the sandbox";

/// What a VM is spawned from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// What its first snapshot is compared with, too.
    pub(crate) snapshot: Snapshot,
    pub(crate) memory: MemorySource,
    /// The root image, where the snapshot does not have it.
    root: Option<PathBuf>,
    /// The disk is mounted after the load.
    mount: bool,
}

impl Source {
    /// A bake, whose memory is one file.
    pub(crate) fn bake(snapshot: Snapshot) -> Self {
        let memory = MemorySource {
            file: snapshot
                .manifest
                .memory
                .as_ref()
                .map(|layer| snapshot.path(layer)),
            pages: Vec::new(),
            pages_bytes: 0,
        };
        Self::new(snapshot, memory)
    }

    /// A snapshot, whose memory is put together from this.
    pub(crate) fn new(snapshot: Snapshot, memory: MemorySource) -> Self {
        Self {
            snapshot,
            memory,
            root: None,
            mount: false,
        }
    }

    /// The same, with the root image from the cache if the snapshot has none.
    pub(crate) fn with_root(self, root: PathBuf) -> Self {
        Self {
            root: Some(root),
            ..self
        }
    }

    fn manifest(&self) -> &Manifest {
        &self.snapshot.manifest
    }

    /// How a VM of it begins.
    pub(crate) fn plan(&self) -> Plan {
        let disks = self.manifest().disks.len();
        Plan {
            begin: Begin::Spawn {
                clean_barrier: self.manifest().clean_barrier,
                mount: self.mount,
            },
            machine: self.manifest().machine.clone(),
            disks: disks + 1,
            base: self.manifest().id.clone(),
            kept_disks: disks,
            pages: self.memory.pages.len(),
        }
    }

    /// Puts everything into a sandbox's slot, and makes it the sandbox's parent.
    pub(crate) fn lay_out(&self, dir: &SandboxDir) -> Result<(), EngineError> {
        self.link(dir).map_err(|error| lay_out_error(&error))
    }

    fn link(&self, dir: &SandboxDir) -> Result<(), StoreError> {
        let linked = |name: &str, result: io::Result<()>| result.map_err(io_error(dir, name));
        let manifest = self.manifest();
        let image = manifest.root_image.as_ref();
        let root = image.map(|layer| self.snapshot.path(layer));
        if let Some(root) = root.or_else(|| self.root.clone()) {
            linked(spec::ROOT, dir.link(&root, spec::ROOT))?;
        }
        for (index, layer) in manifest.disks.iter().enumerate() {
            let name = spec::disk(index);
            linked(&name, dir.link(&self.snapshot.path(layer), &name))?;
        }
        match &self.memory.file {
            Some(file) => linked(spec::MEMORY, dir.link(file, spec::MEMORY))?,
            None => linked(spec::MEMORY, make_zeros(dir, &manifest.machine))?,
        }
        for (index, file) in self.memory.pages.iter().enumerate() {
            let name = spec::pages(index);
            linked(&name, dir.link(file, &name))?;
        }
        for (layer, name) in [
            (&manifest.device_state, spec::DEVICE_STATE),
            (&manifest.network, spec::NETWORK),
        ] {
            if let Some(layer) = layer {
                linked(name, dir.link(&self.snapshot.path(layer), name))?;
            }
        }
        dir.set_parent(&self.snapshot)
    }
}

impl Engine {
    /// The bake in which the disk of this root image and size is not mounted yet, made now if
    /// it must be.
    pub(crate) async fn pre_mount(&self, root: &str, size: Size) -> Result<Snapshot, EngineError> {
        let ingredients = self.ingredients_of(root, size).await?;
        let bakery = &self.inner.bakery;
        bakery.ensure(&ingredients, SavedState::PreMount).await
    }

    /// Makes the template's snapshot of this size, if there is none yet.
    pub(crate) async fn ensure_baked(&self, ingredients: &Ingredients) -> Result<(), EngineError> {
        let bakery = &self.inner.bakery;
        if bakery.find(ingredients, SavedState::Ready).is_none() {
            bakery.ensure(ingredients, SavedState::Ready).await?;
        }
        Ok(())
    }
}

/// Memory that nobody has written.
fn make_zeros(dir: &SandboxDir, machine: &Machine) -> io::Result<()> {
    let file = File::create_new(dir.slot().join(spec::MEMORY))?;
    file.set_len(machine.memory_bytes())?;
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o444))
}

fn io_error(dir: &SandboxDir, name: &str) -> impl FnOnce(io::Error) -> StoreError {
    let path = dir.slot().join(name);
    move |source| StoreError::Io {
        action: "link",
        path,
        source,
    }
}

/// What the store's refusal means for whoever asked for a sandbox.
pub(crate) fn lay_out_error(error: &StoreError) -> EngineError {
    if error.is_no_space() {
        return EngineError::NoSpace(CANNOT_LAY_OUT.to_owned());
    }
    let reason = pando_shim::error_chain(error);
    EngineError::SpawnFailed(format!("{CANNOT_LAY_OUT}: {reason}"))
}

/// Puts what a kernel boots from into a slot. What such a sandbox is compared with when a
/// snapshot of it is taken is memory that is all zeros, and the template's empty disk.
pub(crate) fn lay_out_boot(
    dir: &SandboxDir,
    ingredients: &Ingredients,
    machine: &Machine,
    base: &str,
) -> Result<(), EngineError> {
    link_boot(dir, ingredients).map_err(|error| no_space_or(&error, CANNOT_LAY_OUT))?;
    let parent =
        dir.replace_parent(|fresh| zeros_and_empty_disk(fresh, ingredients, machine, base));
    parent.map_err(|error| lay_out_error(&error))
}

fn zeros_and_empty_disk(
    fresh: &Path,
    ingredients: &Ingredients,
    machine: &Machine,
    base: &str,
) -> Result<(), StoreError> {
    let io = |path: &Path| {
        let path = path.to_path_buf();
        move |source| StoreError::Io {
            action: "link",
            path,
            source,
        }
    };
    std::fs::create_dir(fresh).map_err(io(fresh))?;
    let disk = spec::disk(0);
    for (from, name) in [
        (&ingredients.base.root, spec::ROOT),
        (&ingredients.base.disk, &disk),
    ] {
        let target = fresh.join(name);
        pando_store::link_or_copy(from, &target).map_err(io(&target))?;
    }
    let describe = |name: &str| {
        let layer = Layer::describe(fresh, name);
        layer.map_err(|error| StoreError::Layer(name.to_owned(), error))
    };
    let manifest = Manifest {
        id: base.to_owned(),
        kind: SavedState::Running,
        machine: machine.clone(),
        created_at_ms: crate::bake::now_ms(),
        root: ingredients.base.content_hash.clone(),
        root_image: Some(describe(spec::ROOT)?),
        disks: vec![describe(&disk)?],
        memory: None,
        pages: Vec::new(),
        device_state: None,
        network: None,
        clean_barrier: true,
    };
    Snapshot::write(fresh, &manifest)
}

/// How a sandbox begins that boots a kernel of its own.
pub(crate) fn boot_plan(machine: Machine, base: &str) -> Plan {
    Plan {
        begin: Begin::Boot,
        machine,
        disks: DISKS_OF_A_BOOT,
        base: base.to_owned(),
        kept_disks: DISKS_OF_A_BOOT - 1,
        pages: 0,
    }
}

/// Makes a kept disk start from `bake`, in which no disk is mounted yet: the memory of the
/// last run goes, the disk's layers stay.
pub(crate) fn lay_out_start(dir: &SandboxDir, bake: &Snapshot) -> Result<Plan, EngineError> {
    let plan = start_on_disk(dir, bake).map_err(|error| lay_out_error(&error))?;
    for name in [spec::MEMORY, spec::DEVICE_STATE, spec::NETWORK] {
        let found = match name {
            spec::MEMORY => &bake.manifest.memory,
            spec::DEVICE_STATE => &bake.manifest.device_state,
            // Of the memory that goes.
            _ => &None,
        };
        let replaced = dir.unlink(name).and_then(|()| match found {
            Some(layer) => dir.link(&bake.path(layer), name),
            None => Ok(()),
        });
        replaced.map_err(|error| no_space_or(&error, CANNOT_LAY_OUT))?;
    }
    Ok(plan)
}

/// What a machine is compared with that starts from a bake on a disk of these layers.
fn on_disk(bake: &Snapshot, disks: &[Layer]) -> Manifest {
    Manifest {
        id: crate::ids::snapshot().to_string(),
        kind: SavedState::Running,
        created_at_ms: crate::bake::now_ms(),
        disks: disks.to_vec(),
        device_state: None,
        network: None,
        ..bake.manifest.clone()
    }
}

/// Puts the disk of a snapshot into a new sandbox's slot, and a bake in which no disk is
/// mounted yet.
pub(crate) fn lay_out_disk(
    dir: &SandboxDir,
    snapshot: &Snapshot,
    bake: &Snapshot,
) -> Result<Plan, EngineError> {
    let manifest = on_disk(bake, &snapshot.manifest.disks);
    let disks = snapshot.manifest.disks.iter().enumerate();
    let disks = disks.map(|(index, layer)| (snapshot.path(layer), spec::disk(index)));
    let bakes = [
        (&bake.manifest.root_image, spec::ROOT),
        (&bake.manifest.memory, spec::MEMORY),
        (&bake.manifest.device_state, spec::DEVICE_STATE),
    ];
    let bakes = bakes
        .into_iter()
        .filter_map(|(layer, name)| Some((bake.path(layer.as_ref()?), name.to_owned())));
    for (file, name) in disks.chain(bakes) {
        let linked = dir.link(&file, &name);
        linked.map_err(|error| no_space_or(&error, CANNOT_LAY_OUT))?;
    }
    dir.replace_parent(|fresh| bake.link_with(fresh, &manifest, snapshot))
        .map_err(|error| lay_out_error(&error))?;
    Ok(on_disk_plan(
        bake,
        manifest,
        snapshot.manifest.disks.len() + 1,
    ))
}

fn on_disk_plan(bake: &Snapshot, parent: Manifest, disks: usize) -> Plan {
    Plan {
        begin: Begin::Spawn {
            clean_barrier: bake.manifest.clean_barrier,
            mount: true,
        },
        machine: bake.manifest.machine.clone(),
        disks,
        base: parent.id,
        kept_disks: parent.disks.len(),
        pages: 0,
    }
}

/// A sandbox that started on its disk is compared with the bake's memory from now on, and
/// with those layers of its disk that were kept before.
fn start_on_disk(dir: &SandboxDir, bake: &Snapshot) -> Result<Plan, StoreError> {
    let before = dir.parent()?;
    let there = |index: &usize| dir.slot().join(spec::disk(*index)).exists();
    let disks = (0..).take_while(there).count();
    // Without a parent the first layer, the template's, is known all the same.
    let from = before.as_ref().unwrap_or(bake);
    let kept = match &before {
        Some(parent) => &parent.manifest.disks[..],
        None => &bake.manifest.disks[..1],
    };
    let manifest = on_disk(bake, kept);
    dir.replace_parent(|fresh| bake.link_with(fresh, &manifest, from))?;
    Ok(on_disk_plan(bake, manifest, disks))
}
