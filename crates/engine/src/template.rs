//! Templates: what sandboxes are made from.

use crate::EngineError;
use crate::bake::Ingredients;
use crate::engine::{Engine, Inner};
use crate::keys::DEFAULT_TENANT;
use crate::network::{egress_json, egress_of};
use crate::request::{Caller, Template};
use pando_image::{BaseImage, BaseOptions, BuildError, Initrd, Progress};
use pando_store::{NewEvent, SavedState, TemplateRow};
use pando_types::{CPUS, EgressPolicy, MEMORY_MIB, Size, TemplateRef};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

/// The one template that Pando knows how to make.
const BASE: &str = "base";

/// How a template is made.
#[derive(Clone, Debug, Default)]
pub struct BakeOptions {
    /// Whether the guest trusts the certificates that the host trusts beyond Debian's.
    pub host_ca: bool,
    /// The size to bake; others follow at their first use.
    pub size: Option<Size>,
}

/// `BakeOptions` as the index keeps them, for making the template again.
#[derive(Debug, Serialize, Deserialize)]
struct Recipe {
    host_ca: bool,
}

impl Engine {
    /// Makes a template: its root image if that is not in the cache, then both of its bakes.
    /// `progress` gets a line for each step; it is called from another thread.
    ///
    /// # Errors
    /// The template is not one that can be made, a tool or the network is missing, or the guest does not come up.
    pub async fn bake_template(
        &self,
        caller: &Caller,
        template: &TemplateRef,
        options: BakeOptions,
        progress: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Template, EngineError> {
        if template.name.as_str() != BASE {
            return Err(EngineError::TemplateNotFound(template.to_string()));
        }
        let progress: Arc<dyn Fn(&str) + Send + Sync> = Arc::new(progress);
        let (engine, caller, template) = (self.clone(), caller.clone(), template.clone());
        self.detached(move |_| async move {
            let base = engine
                .build_base(options.host_ca, Arc::clone(&progress))
                .await?;
            let size = options.size.unwrap_or(Size::DEFAULT);
            let ingredients = engine.with_initrd(base, size).await?;
            progress("booting once and saving the ready guest");
            engine.bake_both(&ingredients).await?;
            let forgets = engine.inner.pool.forgets();
            engine
                .write_template(&caller, &template, &ingredients.base, options.host_ca)
                .await?;
            let root = ingredients.base.content_hash.as_str();
            let now = engine.inner.pool.forget(&template, Some(root));
            // But for this change itself: removed meanwhile, it is not wanted.
            if now == forgets + 1 {
                engine.want(&template, &ingredients, now);
            }
            engine.template(&caller, &template).await
        })
        .await
    }

    /// Bakes a size ahead of its first use.
    ///
    /// # Errors
    /// There is no such template, or the guest does not come up.
    pub async fn warm_template(
        &self,
        caller: &Caller,
        template: &TemplateRef,
        size: Size,
    ) -> Result<(), EngineError> {
        let forgets = self.inner.pool.forgets();
        let ingredients = self.ingredients(caller, template, size).await?;
        let template = template.clone();
        self.detached(move |engine| async move {
            engine.bake_both(&ingredients).await?;
            engine.want(&template, &ingredients, forgets);
            Ok(())
        })
        .await
    }

    /// The caller's templates.
    ///
    /// # Errors
    /// The index failed.
    pub async fn templates(&self, caller: &Caller) -> Result<Vec<Template>, EngineError> {
        let rows = self.rows(&caller.tenant).await?;
        let mut templates = Vec::new();
        for row in rows {
            templates.push(self.describe(row).await?);
        }
        Ok(templates)
    }

    /// Whether there is such a template for the caller.
    ///
    /// # Errors
    /// The index failed.
    pub async fn has_template(
        &self,
        caller: &Caller,
        template: &TemplateRef,
    ) -> Result<bool, EngineError> {
        match self.template_row(caller, template).await {
            Ok(_) => Ok(true),
            Err(EngineError::TemplateNotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a template. Sandboxes made from it are kept, and so is its image, which a
    /// stopped one starts from.
    ///
    /// # Errors
    /// There is no such template.
    pub async fn remove_template(
        &self,
        caller: &Caller,
        template: &TemplateRef,
    ) -> Result<(), EngineError> {
        let (tenant, reference) = (caller.tenant.clone(), template.clone());
        let removed = self.blocking(move |inner| {
            let (name, tag) = (reference.name.as_str(), reference.tag.as_str());
            let event = NewEvent {
                tenant: &tenant,
                kind: "template.removed",
                subject: name,
                detail: tag,
            };
            inner.index.remove_template((&tenant, name, tag), &event)
        });
        if !removed.await? {
            return Err(EngineError::TemplateNotFound(template.to_string()));
        }
        self.inner.pool.forget(template, None);
        Ok(())
    }

    pub(crate) async fn template(
        &self,
        caller: &Caller,
        reference: &TemplateRef,
    ) -> Result<Template, EngineError> {
        let row = self.template_row(caller, reference).await?;
        self.describe(row).await
    }

    async fn rows(&self, tenant: &str) -> Result<Vec<TemplateRow>, EngineError> {
        let tenant = tenant.to_owned();
        self.blocking(move |inner| inner.index.templates(&tenant))
            .await
    }

    pub(crate) async fn template_row(
        &self,
        caller: &Caller,
        reference: &TemplateRef,
    ) -> Result<TemplateRow, EngineError> {
        let is_it = |row: &TemplateRow| {
            row.name == reference.name.as_str() && row.tag == reference.tag.as_str()
        };
        let own = self.rows(&caller.tenant).await?.into_iter().find(is_it);
        if let Some(row) = own {
            return Ok(row);
        }
        // Whoever runs the daemon makes templates for all.
        let common = self.rows(DEFAULT_TENANT).await?.into_iter().find(is_it);
        common.ok_or_else(|| EngineError::TemplateNotFound(reference.to_string()))
    }

    async fn describe(&self, row: TemplateRow) -> Result<Template, EngineError> {
        let reference = format!("{}:{}", row.name, row.tag);
        let reference = reference.parse().map_err(|_| {
            EngineError::Internal("the index holds a malformed template".to_owned())
        })?;
        let egress = egress_of(&row.egress)?;
        let (root, created_at) = (row.root, row.created_at);
        self.blocking(move |inner| {
            let mut baked = Vec::new();
            let mut disk_bytes = 0;
            if let Some(base) = pando_image::base::find(&inner.config.cache_dir, &root) {
                disk_bytes += allocated(&base.root) + allocated(&base.disk);
                let initrd = inner.initrd(&base)?;
                for size in all_sizes() {
                    let ingredients = Ingredients {
                        base: base.clone(),
                        initrd: initrd.clone(),
                        size,
                    };
                    if let Some(snapshot) = inner.bakery.find(&ingredients, SavedState::Ready) {
                        baked.push(size);
                        disk_bytes += snapshot.allocated_bytes().unwrap_or(0);
                    }
                }
            }
            Ok::<_, pando_image::BuildError>(Template {
                reference,
                content_hash: root,
                egress,
                baked,
                disk_bytes,
                created_at,
            })
        })
        .await
    }

    /// What a new sandbox of this template and size is baked from.
    pub(crate) async fn ingredients(
        &self,
        caller: &Caller,
        template: &TemplateRef,
        size: Size,
    ) -> Result<Ingredients, EngineError> {
        let row = self.template_row(caller, template).await?;
        let cache_dir = self.inner.config.cache_dir.clone();
        let (root, found) = {
            let root = row.root.clone();
            (
                root.clone(),
                self.blocking(move |_| {
                    Ok::<_, std::io::Error>(pando_image::base::find(&cache_dir, &root))
                })
                .await?,
            )
        };
        match found {
            Some(base) => self.with_initrd(base, size).await,
            // The cache was cleared: make it again, as it was.
            None => {
                let recipe: Recipe = serde_json::from_str(&row.recipe)
                    .map_err(|error| EngineError::internal(&error))?;
                tracing::warn!(
                    root,
                    "the template's image is not in the cache and is made again"
                );
                let base = self
                    .build_base(recipe.host_ca, Arc::new(|_: &str| {}))
                    .await?;
                self.write_template(caller, template, &base, recipe.host_ca)
                    .await?;
                self.with_initrd(base, size).await
            }
        }
    }

    /// What a stopped sandbox starts from: its own root image, today's agent.
    pub(crate) async fn ingredients_of(
        &self,
        root: &str,
        size: Size,
    ) -> Result<Ingredients, EngineError> {
        let (cache_dir, hash) = (self.inner.config.cache_dir.clone(), root.to_owned());
        let found = self
            .blocking(move |_| Ok::<_, std::io::Error>(pando_image::base::find(&cache_dir, &hash)))
            .await?;
        let base = found.ok_or_else(|| {
            EngineError::SpawnFailed(format!(
                "the image `{root}` it was made from is not in the cache"
            ))
        })?;
        self.with_initrd(base, size).await
    }

    async fn with_initrd(&self, base: BaseImage, size: Size) -> Result<Ingredients, EngineError> {
        // Not over to another thread where it is known, as for all but the first request.
        if let Some(initrd) = self.inner.known_initrd(&base.content_hash) {
            return Ok(Ingredients { base, initrd, size });
        }
        self.blocking(move |inner| {
            let initrd = inner.initrd(&base)?;
            Ok::<_, pando_image::BuildError>(Ingredients { base, initrd, size })
        })
        .await
    }

    async fn build_base(
        &self,
        host_ca: bool,
        progress: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<BaseImage, EngineError> {
        let config = &self.inner.config;
        let options = BaseOptions {
            cache_dir: config.cache_dir.clone(),
            mirror: config.debian_mirror.clone(),
            host_ca,
        };
        let built = tokio::task::spawn_blocking(move || {
            pando_image::base::build(&options, &|step| match step {
                Progress::Step(text) => progress(text),
                Progress::Line(line) => tracing::debug!(target: "image", "{line}"),
            })
        });
        let built = built.await.map_err(|error| EngineError::internal(&error))?;
        built.map_err(|error| EngineError::BakeFailed {
            template: BASE.to_owned(),
            reason: pando_shim::error_chain(&error),
        })
    }

    /// Both kinds, side by side: each is one busy CPU.
    async fn bake_both(&self, ingredients: &Ingredients) -> Result<(), EngineError> {
        let bakery = &self.inner.bakery;
        let (ready, pre_mount) = tokio::join!(
            bakery.ensure(ingredients, SavedState::Ready),
            bakery.ensure(ingredients, SavedState::PreMount)
        );
        ready.and(pre_mount).map(drop)
    }

    async fn write_template(
        &self,
        caller: &Caller,
        template: &TemplateRef,
        base: &BaseImage,
        host_ca: bool,
    ) -> Result<(), EngineError> {
        let recipe = serde_json::to_string(&Recipe { host_ca })
            .map_err(|error| EngineError::internal(&error))?;
        let row = TemplateRow {
            tenant: caller.tenant.clone(),
            name: template.name.to_string(),
            tag: template.tag.to_string(),
            root: base.content_hash.clone(),
            recipe,
            // That of a new one; one that was there keeps its own.
            egress: egress_json(&EgressPolicy::allow_all())?,
            created_at: SystemTime::now(),
        };
        self.blocking(move |inner| {
            inner.index.put_template(&row)?;
            let event = NewEvent {
                tenant: &row.tenant,
                kind: "template.baked",
                subject: &row.name,
                detail: &row.root,
            };
            inner.index.add_event(&event)
        })
        .await
    }
}

impl Inner {
    fn known_initrd(&self, root: &str) -> Option<Initrd> {
        let initrds = self.initrds.lock().unwrap_or_else(PoisonError::into_inner);
        // The cache may be cleared at any time.
        let initrd = initrds.get(root).filter(|initrd| initrd.path.exists());
        initrd.cloned()
    }

    /// The initrd of a root image with this daemon's agent.
    fn initrd(&self, base: &BaseImage) -> Result<Initrd, BuildError> {
        if let Some(initrd) = self.known_initrd(&base.content_hash) {
            return Ok(initrd);
        }
        let config = &self.config;
        let initrd = pando_image::initrd::build(base, config.agent, &config.cache_dir)?;
        let mut initrds = self.initrds.lock().unwrap_or_else(PoisonError::into_inner);
        initrds.insert(base.content_hash.clone(), initrd.clone());
        Ok(initrd)
    }
}

fn all_sizes() -> impl Iterator<Item = Size> {
    CPUS.into_iter().flat_map(|cpus| {
        MEMORY_MIB
            .into_iter()
            .filter_map(move |memory| Size::new(cpus, memory).ok())
    })
}

fn allocated(path: &Path) -> u64 {
    pando_sys::file::allocated_bytes(path).unwrap_or(0)
}
