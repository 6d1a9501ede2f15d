{{/* values.yaml without its comments, made by tests/_support/chart_reference.py; do not edit. */}}
{{- define "kvferry.defaults" -}}
namespaces: []
replicas: 2
image:
  repository: ghcr.io/kvferry/kvferry-operator
  tag: ''
  digest: ''
  pullPolicy: IfNotPresent
imagePullSecrets: []
modelImages:
  engine: ''
  runtime: ''
  vllm: ''
  pullPolicy: IfNotPresent
operator:
  workers: 8
  resyncSeconds: 300
  logFormat: json
  logLevel: info
extraEnv: []
nameOverride: ''
fullnameOverride: ''
commonLabels: {}
crds:
  enabled: true
  keep: true
rbac:
  create: true
  aggregate: true
serviceAccount:
  create: true
  name: ''
  annotations: {}
podAnnotations: {}
podLabels: {}
podSecurityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
    - ALL
resources:
  requests:
    cpu: 100m
    memory: 128Mi
  limits:
    memory: 256Mi
priorityClassName: ''
nodeSelector: {}
tolerations: []
affinity: {}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
podDisruptionBudget:
  enabled: true
networkPolicy:
  enabled: true
  from: []
serviceMonitor:
  enabled: false
  interval: 30s
  labels: {}
podMonitor:
  enabled: false
  interval: 15s
  labels: {}
dashboard:
  enabled: false
  labels:
    grafana_dashboard: '1'
  annotations: {}
{{- end -}}
