"""The values of the Helm chart, with their defaults, descriptions and limits."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from benchmarks.simulation import scaling
from sie_triton.settings.cluster import NAME

Name = Annotated[str, Field(pattern=NAME)]
Size = Annotated[str, Field(pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)$")]
Seconds = Annotated[int, Field(ge=0, le=86_400)]
PoolName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$")]  # part of names of objects
Port = Annotated[int, Field(ge=1, le=65_535)]
# Which image "latest" is changes without anybody's decision.
NOT_LATEST: Any = {"not": {"pattern": "(^|:)latest$"}}

Free = dict[str, Any]  # an object of Kubernetes, which checks it itself


class Values(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class ValueFrom(Values):
    """Source of an environment variable, such as a key of a Secret."""

    value_from: Free


Environment = dict[str, str | ValueFrom]


def of(model: type[Values], description: str) -> Any:
    return Field(default_factory=model, description=description)


def resources(cpu: str, memory: str) -> Any:
    given = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}
    return Field(given, description="requests and limits of CPU and memory")


def env(of_what: str) -> Any:
    text = f"further environment variables of {of_what}; a value is a text, or a mapping with valueFrom"
    return Field({}, description=text)


def spread(*constraints: Free) -> Any:
    text = "spread of the Pods over nodes and zones; the chart adds the labelSelector"
    return Field([*constraints], description=text)


# For Pods that serve all others: on different nodes, if there are several.
OVER_NODES = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}


class Placement(Values):
    """Metadata of a part's Pods, and the nodes on which they may run."""

    pod_annotations: dict[str, str] = Field({}, description="annotations of the Pods")
    pod_labels: dict[str, str] = Field({}, description="labels of the Pods, beside those that the chart needs")
    node_selector: dict[str, str] = Field({}, description="labels of the nodes")
    tolerations: list[Free] = Field([], description="tolerations of taints")
    affinity: Free = Field({}, description="affinity of the Pods")
    topology_spread_constraints: list[Free] = spread()


class Pod(Placement):
    extra_volumes: list[Free] = Field([], description="further volumes of the Pods")


class Container(Values):
    env_from: list[Free] = Field(
        [], description="Secrets and ConfigMaps whose keys become environment variables, such as AWS_ACCESS_KEY_ID"
    )
    extra_volume_mounts: list[Free] = Field([], description="mounts of extraVolumes in the container")


class Image(Values):
    repository: str = Field("sie-triton", min_length=1, description="name of the image, with its registry")
    tag: str = Field("", json_schema_extra=NOT_LATEST, description="tag; default: the chart's appVersion")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field("IfNotPresent", description="when it is pulled")
    pull_secrets: list[str] = Field([], description="names of Secrets of the registry")


class Auth(Values):
    mode: Literal["none", "token"] = Field("none", description="token: clients need one of the Secret's tokens")
    existing_secret: str = Field(
        "",
        description="Secret with the keys tokens (one per line) and adminToken; for monitors metricsToken, too, which "
        "is one of the tokens; needed if mode is token",
    )


class GatewayAutoscaling(Values):
    enabled: bool = Field(False, description="scale gateways: by requests with KEDA, by CPU without")
    min_replicas: int = Field(2, ge=1, le=100, description="minimum number of gateways")
    max_replicas: int = Field(10, ge=1, le=100, description="maximum number of gateways")
    requests_per_second: int = Field(100, ge=1, description="requests per second of a gateway, with KEDA")
    cpu_percent: int = Field(70, ge=1, le=100, description="use of the requested CPU, without KEDA")


class Ingress(Values):
    enabled: bool = Field(False, description="make an Ingress for HTTP")
    class_name: str = Field("", description="IngressClass")
    host: str = Field("", description="host name; default: any")
    tls_secret: str = Field("", description="Secret with the host's certificate")
    annotations: Free = Field(
        {
            "nginx.ingress.kubernetes.io/proxy-body-size": "100m",
            "nginx.ingress.kubernetes.io/proxy-read-timeout": "600",
        },
        description="annotations; the defaults are for ingress-nginx",
    )


class Service(Values):
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field("ClusterIP", description="kind of Service")
    annotations: dict[str, str] = Field({}, description="annotations of the Service")


class Gateway(Pod, Container):
    replicas: int = Field(2, ge=1, le=100, description="gateways, if they are not scaled")
    pool: Name = Field("default", description="pool of requests that name none")
    service: Service = of(Service, "the Service of all gateways; NAME-headless beside it has their addresses")
    http_port: Port = Field(8080, description="port of SIE's, OpenAI's and Cohere's HTTP")
    grpc_port: Port = Field(8001, description="port of Triton's gRPC")
    auth: Auth = of(Auth, "tokens of clients")
    autoscaling: GatewayAutoscaling = of(GatewayAutoscaling, "number of gateways")
    ingress: Ingress = of(Ingress, "access from outside")
    resources: Free = resources("500m", "1Gi")
    env: Environment = env("gateways, such as SIE_DOOR_MAX_MEMORY_BYTES, whose default is half of the memory limit")
    topology_spread_constraints: list[Free] = spread(OVER_NODES)


class Config(Pod, Container):
    replicas: int = Field(1, ge=1, le=5, description="config services; their data is in NATS")
    port: Port = Field(8081, description="port of its HTTP")
    existing_secret: str = Field(
        "", description="Secret with the key `adminToken`; default: gateway.auth.existingSecret, else a generated one"
    )
    resources: Free = resources("50m", "256Mi")
    env: Environment = env("config services")


class Batcher(Values):
    coalesce_ms: int = Field(
        0, ge=0, le=1000, description="wait of a sidecar for requests to join, in ms; 0: they join while others run"
    )
    max_batch_requests: int = Field(64, ge=1, le=512, description="requests that a sidecar joins into a call of Triton")


class WorkerSidecar(Container):
    batcher: Batcher = of(Batcher, "how requests are joined")
    adaptive_target_p50_ms: int = Field(
        50, ge=1, le=10_000, description="median wait before a forward pass that a sidecar keeps to, in ms"
    )
    max_concurrent_batches: int = Field(
        0, ge=0, le=1000, description="calls of Triton at a time, for each model; 0: 1 on a CPU, 4 on a GPU"
    )
    health_publish_interval_ms: int = Field(1000, ge=100, le=60_000, description="interval of heartbeats, in ms")
    pool_admission_enabled: bool = Field(True, description="workers join pools that clients lease")
    metrics_port: Port = Field(9095, description="port of /metrics, /healthz and /readyz")
    resources: Free = resources("200m", "512Mi")
    env: Environment = env("sidecars")


class Persistence(Values):
    enabled: bool = Field(True, description="keep the queue on a PersistentVolumeClaim; false: lost with the Pod")
    size: Size = Field("10Gi", description="size of the claim, or limit of the Pod's own volume")
    storage_class: str = Field("", description="StorageClass; default: the cluster's")


class WorkerPersistence(Persistence):
    enabled: bool = Field(
        False, description="keep the data directory on a PersistentVolumeClaim of each worker; false: lost with the Pod"
    )
    size: Size = Field("50Gi", description="size of the claim, or limit of the Pod's own volume")


class ModelCache(Values):
    host_path: str = Field(
        "",
        pattern="^(/.+)?$",
        description="existing directory of the nodes, which belongs to user 10001: the workers of a node share weights",
    )
    existing_claim: str = Field("", description="PersistentVolumeClaim (ReadWriteMany): all workers share weights")


class ImagePrepull(Values):
    enabled: bool = Field(
        False,
        description="make a DaemonSet for each pool, which pulls its image where its workers may run",
    )


class Common(Pod, Container):
    models: list[str] = Field(
        ["sentence-transformers/all-MiniLM-L6-v2"], min_length=1, description="models of every pool that names none"
    )
    preload_models: list[str] = Field(
        [],
        description="models that each worker loads when it starts, whether `models` has them or not",
    )
    worker_sidecar: WorkerSidecar = of(WorkerSidecar, "the sidecar of each worker")
    resources: Free = resources("2", "8Gi")
    env: Environment = env("servers, such as SIE_IDLE_EVICT_S and HF_TOKEN")
    shm_size: Size = Field("1Gi", description="size of /dev/shm, which counts as memory of the server")
    persistence: WorkerPersistence = of(WorkerPersistence, "the data directory, with downloaded weights")
    model_cache: ModelCache = of(ModelCache, "downloaded weights outside of the data directory; one of both, or none")
    image_prepull: ImagePrepull = of(ImagePrepull, "images on nodes before workers start there")
    startup_seconds: Seconds = Field(
        1800, description="time that a worker has to become ready, with downloads of preloadModels"
    )
    termination_grace_seconds: Seconds = Field(
        65, description="Kubernetes' limit for the shutdown of a worker, of which 25 s are for its requests"
    )
    runtime_class_name: str = Field("", description="RuntimeClass of the Pods, such as nvidia")
    spot_tolerations: list[Free] = Field(
        [
            {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
            {
                "key": "kubernetes.azure.com/scalesetpriority",
                "operator": "Equal",
                "value": "spot",
                "effect": "NoSchedule",
            },
        ],
        description="tolerations of pools with spot: true, in addition",
    )


class Gpu(Values):
    count: int = Field(
        0,
        ge=0,
        le=1,
        description="GPUs of a worker, which uses one; with 1 it tolerates the taint of that name, too",
    )
    resource: str = Field("nvidia.com/gpu", min_length=1, description="name of the resource")


class Pool(Values):
    enabled: bool = Field(True, description="make this pool")
    min_replicas: int = Field(1, ge=0, le=1000, description="minimum number of workers; 0 needs KEDA")
    max_replicas: int = Field(4, ge=1, le=1000, description="maximum number of workers")
    machine_profile: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,64}$", description="kind of machine; default: the pool")
    gpu_type: str = Field("", description="type of the GPU that the status reports, such as l4")
    bundle: Name = Field("default", description="bundle that its workers serve, of bundles in their SIE_MODELS_DIR")
    gpu: Gpu = of(Gpu, "the GPU of each worker")
    spot: bool = Field(False, description="run on spot (preemptible) machines")
    models: list[str] = Field([], description="models; default: those of workers.common")
    preload_models: list[str] = Field([], description="in place of workers.common.preloadModels")
    image: str = Field("", json_schema_extra=NOT_LATEST, description="image with its tag; default: image")
    resources: Free = Field({}, description="in place of workers.common.resources")
    env: Environment = Field({}, description="environment variables of servers, in addition")
    runtime_class_name: str = Field("", description="in place of workers.common.runtimeClassName")
    node_selector: dict[str, str] = Field({}, description="labels of the nodes, in addition")
    tolerations: list[Free] = Field([], description="tolerations of taints, in addition")


class Workers(Values):
    common: Common = of(Common, "settings of all pools")
    pools: dict[PoolName, Pool] = Field(
        default_factory=lambda: {"default": Pool()},
        min_length=1,
        json_schema_extra={"additionalProperties": False},  # names that are not a pool's
        description="pools of workers, by name",
    )


class Queue(Values):
    replicas: int = Field(1, ge=1, le=5, description="NATS servers that store each request; at most nats.replicas")
    max_bytes: int = Field(1024**3, ge=1024**2, description="maximum size of a pool's queue, in bytes")
    max_messages: int = Field(100_000, ge=1, description="maximum number of requests in a pool's queue")


class PayloadStore(Values):
    enabled: bool = Field(False, description="store requests of more than 8 MB beside the queue")
    url: str = Field("", description="s3://bucket/prefix, gs://bucket/prefix, or file:///directory of a shared volume")


class WeightCache(Values):
    enabled: bool = Field(False, description="share downloaded weights among the workers")
    url: str = Field("", description="s3://bucket/prefix, gs://bucket/prefix, or file:///directory of a shared volume")


class SharedVolume(Values):
    claim_name: str = Field("", description="PersistentVolumeClaim (ReadWriteMany) for file:// URLs")
    mount_path: str = Field("/var/lib/sie-shared", description="its directory in the containers")


class Nats(Placement):
    enabled: bool = Field(True, description="run NATS; false: use the one at nats.url")
    url: str = Field("", description="addresses of another NATS, separated by commas")
    existing_secret: str = Field(
        "",
        description="Secret with the passwords of NATS' users, keys gateway, sidecar, config and operator, and of its "
        "servers among each other, key peer (letters and digits); default: a generated one",
    )
    ca_secret: str = Field("", description="Secret with the key ca.crt, the authority of another NATS; turns TLS on")
    replicas: Literal[1, 3, 5] = Field(1, description="NATS servers")
    image: str = Field(
        "nats:2.15.1-alpine", pattern="^.+:[^:]+$", json_schema_extra=NOT_LATEST, description="image with its tag"
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="when it is pulled"
    )
    user: int = Field(1000, ge=1, description="user id of its process")
    persistence: Persistence = of(Persistence, "the disk of the queue")
    resources: Free = resources("250m", "512Mi")
    topology_spread_constraints: list[Free] = spread(OVER_NODES)


class Keda(Values):
    enabled: bool = Field(True, description="make KEDA's ScaledObjects; false: HorizontalPodAutoscalers by CPU")
    prometheus_url: str = Field(
        "http://prometheus-operated.monitoring:9090", description="Prometheus with the metrics of the gateways"
    )
    polling_interval: Seconds = Field(int(scaling.POLL_S), description="interval of KEDA's questions, in seconds")
    cooldown_period: Seconds = Field(
        int(scaling.COOLDOWN_S), description="time without demand before a pool goes to zero, in seconds"
    )
    fallback_replicas: int = Field(2, ge=1, description="workers while Prometheus does not answer")
    queue_depth: int = Field(
        int(scaling.QUEUE_DEPTH_PER_WORKER), ge=1, description="requests in the queue for each worker"
    )
    queue_activation: int = Field(
        int(scaling.QUEUE_DEPTH_ACTIVATION), ge=0, description="requests above which a pool starts from zero"
    )
    rejected_per_second: int = Field(
        int(scaling.REJECTED_PER_WORKER), ge=1, description="refused requests per second for each worker"
    )
    scale_up_percent: int = Field(
        int(100 * scaling.MAX_GROWTH_RATIO), ge=1, description="most growth in 15 s, in percent"
    )
    scale_up_pods: int = Field(scaling.MAX_GROWTH, ge=1, description="most growth in 15 s, in workers, if that is more")
    scale_down_seconds: Seconds = Field(
        int(scaling.STABILISATION_S), description="time for which fewer workers must be enough"
    )


class Autoscaling(Values):
    enabled: bool = Field(False, description="scale the pools; false: each has its minReplicas")
    keda: Keda = of(Keda, "scaling by demand, to zero and back")
    cpu_percent: int = Field(70, ge=1, le=100, description="use of the requested CPU, without KEDA")


class NetworkPolicy(Values):
    enabled: bool = Field(False, description="limit connections to those that the parts need")
    clients: list[Free] = Field([], description="who may reach gateways, as `from` of a NetworkPolicy; default: all")
    monitoring: list[Free] = Field([], description="who may reach metrics; default: all")
    egress_ports: list[Port] = Field([443], description="ports outside that workers and gateways may reach")


class Monitors(Values):
    enabled: bool = Field(False, description="make ServiceMonitor and PodMonitor of the Prometheus Operator")
    labels: dict[str, str] = Field({}, description="labels by which a Prometheus chooses them")
    interval: str = Field("15s", pattern="^[1-9][0-9]*s$", description="interval of scrapes")


class PrometheusRule(Values):
    enabled: bool = Field(False, description="make a PrometheusRule with the alerts, and the rules of the dashboard")
    labels: dict[str, str] = Field({}, description="labels by which a Prometheus chooses it")


class Dashboard(Values):
    enabled: bool = Field(False, description="make a ConfigMap with the dashboard")
    labels: dict[str, str] = Field({"grafana_dashboard": "1"}, description="labels by which Grafana chooses it")
    annotations: dict[str, str] = Field({}, description="annotations, such as the folder of the dashboard")


class ServiceAccount(Values):
    create: bool = Field(True, description="make a ServiceAccount, without any rights, for all Pods")
    name: str = Field("", description="its name; default: the release's, or `default` if none is made")
    annotations: dict[str, str] = Field({}, description="annotations, such as a role that may use buckets")


class PriorityClasses(Values):
    enabled: bool = Field(False, description="make a PriorityClass for gateways and NATS, and one for workers")
    service: int = Field(1_000_000, le=1_000_000_000, description="priority of gateways, config service and NATS")
    worker: int = Field(100_000, le=1_000_000_000, description="priority of workers")


class Budgets(Values):
    enabled: bool = Field(True, description="make PodDisruptionBudgets: one Pod of each part may be away")


class Chart(Values):
    image: Image = of(Image, "image of gateways, the config service and workers")
    gateway: Gateway = of(Gateway, "gateways, which answer clients")
    config: Config = of(Config, "config services, which make the queue of each pool")
    workers: Workers = of(Workers, "workers: Triton, its controller and a sidecar")
    queue: Queue = of(Queue, "limits of the queue")
    payload_store: PayloadStore = of(PayloadStore, "store of large requests")
    weight_cache: WeightCache = of(WeightCache, "cache of weights")
    shared_volume: SharedVolume = of(SharedVolume, "a volume for payload store and weight cache")
    nats: Nats = of(Nats, "NATS JetStream, which holds the queue")
    autoscaling: Autoscaling = of(Autoscaling, "number of workers")
    network_policy: NetworkPolicy = of(NetworkPolicy, "limits of connections")
    monitors: Monitors = of(Monitors, "metrics for the Prometheus Operator")
    prometheus_rule: PrometheusRule = of(PrometheusRule, "alerts for the Prometheus Operator")
    dashboard: Dashboard = of(Dashboard, "the dashboard for Grafana")
    priority_classes: PriorityClasses = of(PriorityClasses, "priorities of the Pods")
    pod_disruption_budgets: Budgets = of(Budgets, "protection from drained nodes")
    service_account: ServiceAccount = of(ServiceAccount, "identity of the Pods")
    name_override: str = Field("", description="in place of the release's name in names of objects")
