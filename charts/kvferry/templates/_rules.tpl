{{/*
What the operator may do, in every namespace that it serves: exactly the calls that it makes. What is missing is
created; what is to be changed is looked at (`get`) and applied (`patch`). There is no right to read a Secret.
*/}}
{{- define "kvferry.rules" -}}
- apiGroups: [kvferry.io]
  resources: [disaggregatedmodels]
  verbs: [list, watch]
- apiGroups: [kvferry.io]
  resources: [disaggregatedmodels/status]
  verbs: [patch]
# what a model is made of
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets/scale]
  verbs: [patch]
# the key that a model's pods share: made once, never read
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# delete: what is left of a group of pipeline stages that lost one
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
# the router's report on its pairs
- apiGroups: [""]
  resources: [pods/proxy]
  verbs: [get]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
# not called: handed on to the router, and nobody can hand on what they do not hold
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end -}}

{{/* Cluster-wide only: which nodes offer the RDMA resource that a model asks for. */}}
{{- define "kvferry.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end -}}

{{/* Leader election, in the release's namespace. */}}
{{- define "kvferry.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [kvferry-operator]
  verbs: [get, update]
{{- end -}}
