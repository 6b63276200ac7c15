"""Lines of bash blocks in README and docs/ that tests/server/test_examples.py does not run, each with the reason."""

INSTALLS = "installs or makes an environment: a clean clone is the test"
COMMANDS = "tests/process/cli/test_models_commands.py runs it"
LORA = "test_adapters_of_a_running_server runs it, with the flags of this server"
CLUSTER = "tests/residency/test_cluster_by_hand.py runs it with another model"
CHART = "tests/process/deploy renders it, and tests/residency/test_chart_pods.py runs its Pods"
BY_HAND = "its arguments are those of a test in tests/server/test_serve.py"
CACHE = "tests/process/cli/test_cache_commands.py runs it on small models"
GPU_CHECK = "tests/process/benchmarks/test_gpu_check.py runs it"
IMAGE = "scripts/image builds and runs it"
DOCKER_RUN = (
    "docker run -v sie-data:/var/lib/sie-triton --read-only --tmpfs /tmp --shm-size 1g --cap-drop ALL "
    "-p 127.0.0.1:8080:8080 sie-triton:cpu"
)
# Blocks of curl are run.
NOT_RUN = {
    "scripts/serve": INSTALLS,
    "pip install -c constraints.txt '.[server,embedded,demo,onnx,cluster]'": INSTALLS,
    "sie-triton cluster up --workers 2 sentence-transformers/all-MiniLM-L6-v2": "tests/residency/test_cluster.py",
    "sie-triton serve --no-door BAAI/bge-m3": CLUSTER,
    "sie-triton sidecar --nats-url nats://queue:4222 --nats-user sidecar --nats-password @sidecar.password": CLUSTER,
    "sie-triton gateway --host 0.0.0.0 --nats-url nats://queue:4222 --nats-user gateway --nats-password "
    "@gateway.password": CLUSTER,
    "sie-triton config-service --host 0.0.0.0 --nats-url nats://queue:4222 --nats-user config --nats-password "
    "@config.password --admin-token @admin.token": CLUSTER,
    **dict.fromkeys(
        (
            "sie-triton cluster add BAAI/bge-m3 --config-service-url http://config:8081 --admin-token @admin.token",
            "sie-triton cluster add earlier.yaml --config-service-url http://config:8081 --admin-token @admin.token",
            "sie-triton cluster rm BAAI/bge-m3 --config-service-url http://config:8081 --admin-token @admin.token",
        ),
        CLUSTER,
    ),
    "helm install sie deploy/helm/sie-triton --set image.repository=registry.example/sie-triton": CHART,
    "kubectl port-forward service/sie-gateway 8080:8080 8001:8001": CHART,
    "sie-triton cluster nats-config > nats.conf": CLUSTER,
    **dict.fromkeys(
        (
            "scripts/simulate --output results",
            "scripts/simulate --workers 10 --load 0.3 --models 20 --seconds 1200 --parameters mine.json",
        ),
        "tests/pure/simulation/test_command.py runs the command",
    ),
    "scripts/test": INSTALLS,
    "scripts/serve BAAI/bge-small-en-v1.5": "needs the model hub",
    "scripts/serve ./my-model": BY_HAND,
    "scripts/serve --models-dir sie-models": "tests/server/test_catalog.py serves such files",
    "scripts/serve --help": BY_HAND,
    "SIE_HOST=0.0.0.0 SIE_AUTH_MODE=token SIE_AUTH_TOKENS=@/etc/sie/tokens scripts/serve": (
        "tests/pure/settings/test_settings.py and tests/server/test_serve.py have tokens"
    ),
    "pip install -c constraints.txt '.[server,embedded,demo,onnx]'": INSTALLS,
    "pip wheel --no-deps --wheel-dir dist .": "tests/process/package/test_wheel.py builds it",
    'pip install -c constraints.txt "$(ls dist/*.whl)[server,embedded,demo,onnx]"': INSTALLS,
    "sie-triton serve": BY_HAND,
    "docker build -f docker/Dockerfile.cpu -t sie-triton:cpu .": IMAGE,
    DOCKER_RUN: IMAGE,
    "docker compose --profile cpu --profile monitoring up": "tests/process/package/test_images.py reads compose.yaml",
    "pip install 'torch==2.13.0+cpu'": INSTALLS,
    "scripts/perf sentence-transformers/all-MiniLM-L6-v2": "tests/server/test_perf.py runs perf_analyzer",
    "scripts/bench --help": INSTALLS,
    "scripts/gpu-check --output ~/gpu.md": GPU_CHECK,
    "scripts/gpu-check --only kernels,models": GPU_CHECK,
    "scripts/gpu-check --dry-run": GPU_CHECK,
    "scripts/serve --models-dir my-models": "the server of this module is the next line, with all names",
    "scripts/serve --models-dir my-models my/colbert sentence-transformers/all-MiniLM-L6-v2": "same",
    "scripts/serve my-models/colbert.yaml": "tests/process/pipeline/render/test_refresh.py does it",
    "sie-triton models ls": COMMANDS,
    "pip install -c constraints.txt '.[eval]'": INSTALLS,
    "sie-triton cache ls": CACHE,
    "sie-triton cache push BAAI/bge-m3": CACHE,
    "sie-triton cache warm BAAI/bge-m3": CACHE,
    "sie-triton cache rm BAAI/bge-m3": CACHE,
    "sie-triton models show BAAI/bge-m3": COMMANDS,
    "sie-triton top --once --seconds 10": "tests/server/test_settings.py does it",
    "sie-triton models init ./my-model --output m.yaml": COMMANDS,
    "sie-triton models check my-models": COMMANDS,
    "sie-triton models add m.yaml": "tests/server/test_catalog.py does it",
    "sie-triton models rm my-model": "tests/server/test_catalog.py does it",
    **dict.fromkeys(
        (
            "sie-triton eval BAAI/bge-m3 -t ./my-dataset --type perf -s sie,targets",
            "sie-triton eval sentence-transformers/all-MiniLM-L6-v2 -t tests/support/kitchen_garden -s sie,st,targets",
        ),
        "tests/server/test_eval.py runs it",
    ),
    "sie-triton eval BAAI/bge-m3 -t ./my-dataset -s sie,reference=http://host:8080": "the same",
    "sie-triton lora add my/tenants banking ./adapters/banking": LORA,
    "sie-triton lora ls my/tenants": LORA,
    "sie-triton lora rm my/tenants banking": LORA,
}
