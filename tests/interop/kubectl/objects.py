"""One object of each kind that kubectl has commands for."""

DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: fences.pasture.example.com
spec:
  group: pasture.example.com
  scope: Namespaced
  names: {plural: fences, singular: fence, kind: Fence, shortNames: [fn], categories: [all, pasture]}
  versions:
    - name: v1
      served: true
      storage: true
      subresources:
        status: {}
        scale: {specReplicasPath: .spec.posts, statusReplicasPath: .status.posts}
      additionalPrinterColumns:
        - {name: Posts, type: integer, jsonPath: .spec.posts}
        - {name: Wood, type: string, jsonPath: .spec.wood, priority: 1}
        - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
      schema:
        openAPIV3Schema:
          description: A fence around a pasture
          type: object
          required: [spec]
          properties:
            spec:
              description: What the fence should be
              type: object
              required: [posts]
              properties:
                posts: {type: integer, minimum: 0, description: How many posts it has}
                wood: {type: string, enum: [oak, pine], default: pine}
                gates:
                  type: array
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [name]
                  items:
                    type: object
                    required: [name]
                    properties:
                      name: {type: string}
                      width: {type: number}
            status:
              type: object
              properties:
                posts: {type: integer}
                conditions:
                  type: array
                  items:
                    type: object
                    properties:
                      type: {type: string}
                      status: {type: string}
"""

OBJECTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: words, labels: {app: meadow}, annotations: {note: kept}}
data: {greeting: hello, file.txt: "line one\\nline two\\n"}
binaryData: {bytes: AAEC/w==}
---
apiVersion: v1
kind: Secret
metadata: {name: password, labels: {app: meadow}}
type: Opaque
stringData: {password: hunter2, user: shepherd}
---
apiVersion: v1
kind: Pod
metadata: {name: sheep, labels: {app: meadow}}
spec:
  containers:
    - name: main
      image: sheep:1
      command: [graze]
      args: [--slowly]
      ports: [{containerPort: 8080, name: http}]
      env:
        - {name: PLAIN, value: text}
        - {name: FROM_SECRET, valueFrom: {secretKeyRef: {name: password, key: password}}}
        - {name: FROM_FIELD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
      resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}
      livenessProbe: {httpGet: {path: /healthz, port: http}}
      volumeMounts: [{name: words, mountPath: /words}]
  initContainers: [{name: first, image: "lamb:1"}]
  volumes:
    - {name: words, configMap: {name: words}}
    - {name: scratch, emptyDir: {}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: flock, labels: {app: meadow}}
spec:
  replicas: 3
  selector: {matchLabels: {app: flock}}
  template:
    metadata: {labels: {app: flock}}
    spec: {containers: [{name: main, image: "sheep:1"}]}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: pack}
spec:
  replicas: 1
  selector: {matchLabels: {app: pack}}
  template:
    metadata: {labels: {app: pack}}
    spec: {containers: [{name: main, image: "dog:1"}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: herd}
spec:
  serviceName: herd
  replicas: 2
  selector: {matchLabels: {app: herd}}
  template:
    metadata: {labels: {app: herd}}
    spec: {containers: [{name: main, image: "cow:1"}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: dogs}
spec:
  selector: {matchLabels: {app: dogs}}
  template:
    metadata: {labels: {app: dogs}}
    spec: {containers: [{name: main, image: "dog:1"}]}
---
apiVersion: batch/v1
kind: Job
metadata: {name: shear}
spec:
  suspend: true
  template:
    spec: {restartPolicy: Never, containers: [{name: main, image: "shears:1"}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: feed}
spec:
  schedule: "0 6 * * *"
  jobTemplate:
    spec:
      template:
        spec: {restartPolicy: OnFailure, containers: [{name: main, image: "hay:1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: barn}
spec:
  selector: {app: meadow}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: shed}
spec: {type: ExternalName, externalName: shed.example.com}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: door}
spec:
  rules:
    - host: barn.example.com
      http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: barn, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: hedge}
spec: {podSelector: {matchLabels: {app: meadow}}, policyTypes: [Ingress]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: calm}
spec: {minAvailable: 1, selector: {matchLabels: {app: meadow}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: hay}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: limits}
spec: {hard: {configmaps: "100", pods: "50"}}
---
apiVersion: v1
kind: LimitRange
metadata: {name: ranges}
spec: {limits: [{type: Container, max: {memory: 1Gi}, default: {memory: 256Mi}, defaultRequest: {memory: 32Mi}}]}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: shepherd}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: counter}
rules:
  - {apiGroups: [""], resources: [pods, pods/log], verbs: [get, list, watch]}
  - {apiGroups: [apps], resources: [deployments], resourceNames: [flock], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: counters}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: counter}
subjects: [{kind: ServiceAccount, name: shepherd}, {kind: User, name: jane}]
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: turn}
spec: {holderIdentity: shepherd, leaseDurationSeconds: 15}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: grow}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: flock}
  maxReplicas: 5
---
apiVersion: pasture.example.com/v1
kind: Fence
metadata: {name: north}
spec: {posts: 12, gates: [{name: main, width: 2.5}]}
"""
